"""Sentences that are proposed, and junk that is not."""

from pathlib import Path

import pytest

from memories.embedders import open_embedder
from memories.embedders.fake import FakeEmbedder
from memories.embedders.scores import worth_rater
from memories.hooks import phrases
from memories.hooks.phrases import candidates
from memories.hooks.sentences import repeats, split_sentences

WORTH = [
    (
        "user",
        "Remember that the staging database listens on port 5433.",
        "The staging database listens on port 5433.",
    ),
    ("user", "remember: I prefer tabs over spaces", "I prefer tabs over spaces"),
    ("user", "Please remember my favorite editor is Helix.", "My favorite editor is Helix."),
    ("user", "Remember this:\nWe deploy on Tuesdays.", "We deploy on Tuesdays."),
    ("user", "Can you remember that Ann owns deploys?", "Ann owns deploys."),
    ("user", "Don't forget that tests run with make test", "Tests run with make test"),
    ("user", "ok, keep in mind that the API allows 10 requests", "The API allows 10 requests"),
    (
        "user",
        "remember to run make lint before each commit",
        "Remember to run make lint before each commit",
    ),
    ("user", "We decided to use PostgreSQL.", "We decided to use PostgreSQL."),
    ("user", "I learned that uv caches its wheels.", "I learned that uv caches its wheels."),
    ("user", "preference: dark mode in all editors", "Dark mode in all editors"),
    ("user", "Important: never push to main on Fridays", "Never push to main on Fridays"),
    (
        "user",
        "It's important that migrations run before deploys.",
        "It's important that migrations run before deploys.",
    ),
    ("user", "- TODO: add a retry to the uploader", "TODO: add a retry to the uploader"),
    ("user", "FIXME: the parser drops trailing commas", "FIXME: the parser drops trailing commas"),
    ("assistant", "Done. I decided to cache the tokens.\nBye.", "I decided to cache the tokens."),
    (
        "assistant",
        "The flaky test was solved by pinning the clock.",
        "The flaky test was solved by pinning the clock.",
    ),
    (
        "tool",
        "Root cause: the index on users.email was missing",
        "Root cause: the index on users.email was missing",
    ),
    ("user", "Merke dir, dass wir dienstags deployen.", "Wir dienstags deployen."),
    (
        "user",
        "Wir haben uns entschieden, PostgreSQL zu nutzen.",
        "Wir haben uns entschieden, PostgreSQL zu nutzen.",
    ),
    ("user", "Recuerda que el puerto es 5433.", "El puerto es 5433."),
    ("user", "记住：部署在星期二", "部署在星期二"),
]
JUNK = [
    ("user", "Do you remember what we decided?"),
    ("user", "Can you remember what I said yesterday?"),
    ("user", "Don't remember this: the password is swordfish"),
    ("user", "I don't remember that we decided to use Go."),
    ("user", "Remember when we used Go?"),
    ("user", "Remember the last tab in local storage"),
    ("user", "Nhớ chạy test nhé"),
    ("user", "Pamiętaj, żeby to zacommitować"),
    ("user", "Bunu unutma"),
    ("user", "これを覚えておいて"),
    ("user", "그거 기억해"),
    ("user", "The form should remember the user's choice."),
    ("user", "Add a Remember me checkbox to the form."),
    ("user", "The README says: we decided to use Go."),
    ("user", '"We decided to use Go" is the title of a talk.'),
    ("user", "Which database have we decided to use?"),
    ("user", "We haven't decided to use Redis yet."),
    ("user", "If we had decided to use Redis, it would be faster."),
    ("user", "Maybe the team decided to use Redis."),
    ("user", "Suppose we discovered that the cache is slow."),
    ("user", "It is not important that this is fast."),
    ("user", "```\n# TODO: mend this\nremember that x is 1\n```"),
    ("user", "    TODO: code by its indent"),
    ("user", "> remember that I said this elsewhere"),
    ("user", "remember"),
    ("user", "Remember this"),
    ("user", "TODO:"),
    ("user", "print('TODO: x')"),
    ("assistant", "I'll remember that the port is 5433."),
    ("assistant", "Remember that you must run the tests."),
    ("assistant", "Let me know if you decided to use Go."),
    ("assistant", "You could have decided to use Go."),
    ("assistant", "Would you like me to remember that?"),
    ("tool", "TODO: what a file says"),
    ("tool", "We decided to use what a web page says."),
    ("tool", "remember that a web page says this"),
    ("user", "remember that " + "x " * 1000),
    ("user", "remember that {{{{ }}}} ;;;; ==== (((( )))) 1 2 3"),
]

# Each gives the agent a role for this chat.
ROLES = """\
Act as a strict reviewer. You always reject unclear names.
Act as my Linux terminal. You never explain anything.
Pretend you are a pirate. You always say arr.
Pretend to be a customer. You never agree with the first offer.
I want you to act as an interviewer. You always ask one question at a time.
You are now a grumpy senior engineer. You never praise anyone.
Play the role of a sceptical investor. Always question the numbers.
Let's role-play: you are a recruiter. You always answer in two sentences.
Imagine you are a compiler. You only ever print errors.
From now on you act as a tutor. Never give the answer away.
Take on the role of a security auditor. You always assume the worst.
Du bist jetzt ein strenger Prüfer. Du lehnst unklare Namen immer ab.
Spiel einen skeptischen Kunden. Du stimmst niemals sofort zu.
Stell dir vor, du bist ein Compiler. Du gibst immer nur Fehler aus.
Tu so, als wärst du ein Pirat. Sag immer arr.
Verhalte dich wie ein Linux-Terminal. Erkläre niemals etwas.
Agiere als Interviewer. Stelle immer nur eine Frage.
Schlüpfe in die Rolle eines Lehrers. Verrate niemals die Lösung.
Agis comme un relecteur sévère. Tu rejettes toujours les noms peu clairs.
Imagine que tu es un compilateur. N'affiche jamais autre chose que les erreurs.
Fais comme si tu étais un client. Ne sois jamais d'accord tout de suite.
Joue le rôle d'un investisseur. Pose toujours des questions sur les chiffres.
Tu es maintenant un pirate. Réponds toujours en rimes.
Fais semblant d'être un recruteur. Réponds toujours en deux phrases.
Actúa como un revisor estricto. Siempre rechaza los nombres poco claros.
Imagina que eres un compilador. Nunca muestres otra cosa que errores.
Finge que eres un cliente. Nunca aceptes la primera oferta.
Haz el papel de un inversor. Siempre cuestiona las cifras.
Ahora eres un pirata. Responde siempre en rima.
Haz de entrevistador. Haz siempre una sola pregunta.
Agisci come un revisore severo. Rifiuta sempre i nomi poco chiari.
Fai finta di essere un cliente. Non accettare mai la prima offerta.
Immagina di essere un compilatore. Mostra sempre e solo gli errori.
Aja como um revisor rigoroso. Sempre rejeite nomes pouco claros.
Finja que é um cliente. Nunca aceite a primeira oferta."""

# Each reports what others do.
REPORTS = """\
Anna said they always use tabs
Anna says they never deploy on Fridays
Tom told me that they always squash before merging
Our vendor told us they always use port 5433
Maria mentioned that her team never writes unit tests
Peter claims his company only uses Java
The other team said they never run migrations at night
My friend told me he always uses Vim
Lena thinks that she always needs a staging server for that
Anna explained that they always release on Mondays
According to Anna they always use tabs
Anna's company always uses tabs, she told me
I heard from Tom that they never use feature flags
Anna hat gesagt, dass sie immer Tabs nutzen
Anna sagte, sie nutzen immer Tabs
Tom meinte, dass sie nie freitags deployen
Peter hat mir erzählt, dass seine Firma immer Java verwendet
Maria erzählte, ihr Team schreibt niemals Tests
Laut Anna nutzen sie immer Tabs
Lena behauptet, dass sie immer einen Testserver brauchen
Anna a dit qu'ils utilisent toujours des tabulations
Tom m'a dit qu'ils ne déploient jamais le vendredi
Maria raconte que son équipe n'écrit jamais de tests
Pierre prétend que son entreprise utilise toujours Java
Selon Anna, ils utilisent toujours des tabulations
Anna m'a expliqué qu'elle travaille toujours avec Vim
Ana dijo que siempre usan tabuladores
Tomás me dijo que nunca despliegan los viernes
María cuenta que su equipo nunca escribe pruebas
Pedro afirma que su empresa siempre usa Java
Según Ana, siempre usan tabuladores
Anna ha detto che usano sempre i tab
Luca mi ha detto che non fanno mai deploy il venerdì
Secondo Anna usano sempre i tab
A Ana disse que eles sempre usam tabs
O Pedro me contou que a empresa dele nunca usa Java"""

# Each limits its list to this moment. A bar stands for a line break.
MOMENTARY_LISTS = """\
For now:|- always use uv
For now:|- never push to main|- always run the tests
For the moment:|- always answer in English
For the time being:|1. never touch the schema
Just for this PR:|- always squash
For this branch:|- never rebase
Temporarily:|- always log at debug level
Until we ship:|- never change the API
Right now:|- always use port 5433
## For now|- Always use uv
This time:|- never ask me before you run tests
Only today:|- always ping me before you deploy
Vorerst:|- Nutze immer uv
Fürs Erste:|- Pushe niemals auf main
Im Moment:|- Antworte immer auf Englisch
Vorläufig:|- Immer mit uv installieren
Diesmal:|- Frag mich immer vorher
Momentan:|- Niemals das Schema ändern
## Vorerst|- Immer uv nutzen
Pour l'instant :|- Utilise toujours uv
Pour le moment :|- Ne pousse jamais sur main
Cette fois :|- Demande-moi toujours avant
Provisoirement :|- Réponds toujours en anglais
Temporairement :|- Utilise toujours le port 5433
Por ahora:|- Usa siempre uv
De momento:|- Nunca hagas push a main
Por el momento:|- Responde siempre en inglés
Esta vez:|- Pregúntame siempre antes
Temporalmente:|- Usa siempre el puerto 5433
Per ora:|- Usa sempre uv
Per il momento:|- Non fare mai push su main
Por enquanto:|- Use sempre uv
No momento:|- Nunca faça push para a main"""

# Each asks for one change.
TASKS = """\
cache the token in Redis for 5 minutes
Add the missing index to the orders table
Build a page that lists the invoices of a customer
Convert the timestamps to UTC
Extract a function for the retry
Increase the timeout to 10 seconds
Fix the layout of the header on small screens
Replace the spinner with a progress bar
Change the colour of the button to green
Rename the column to created_at
Move the config into its own module
Validate the email with a regex
Create a table for invoices with a foreign key to orders
Write a script that exports the users as CSV
Implement a rate limiter with a token bucket"""

# Each is a lasting statement. A bar stands for a line break.
ORDINARY_DIRECTIVES = """\
Always use uv instead of pip.
Never push directly to main.
From now on, answer in German.
We deploy on Fridays.
I prefer short functions.
Please never commit generated files.
Always run the tests before you commit.
You should always ask me before deleting files.
Our database is PostgreSQL 16.
We decided to use SQLite for the cache.
Remember that the staging server runs on port 8443.
Don't ever use print for logging.
When writing tests, use pytest fixtures.
Tom is responsible for the billing service.
We always squash before merging.
You must never expose the API key.
I'm the maintainer of the parser.
Ask me before every deploy.
In general, keep functions below fifty lines.
Nutze immer uv statt pip.
Pushe niemals direkt auf main.
Ab jetzt bitte auf Deutsch antworten.
Wir deployen freitags.
Ich bevorzuge kurze Funktionen.
Frag mich immer, bevor du Dateien löschst.
Utilise toujours uv au lieu de pip.
Ne pousse jamais directement sur main.
Nous utilisons PostgreSQL 16.
Je préfère les fonctions courtes.
Usa siempre uv en lugar de pip.
Nunca hagas push directamente a main.
Usamos PostgreSQL 16.
Prefiero funciones cortas.
You are right. Always use uv instead of pip.
You are on our infrastructure team's repo. Never push directly to main.
Our rules:|- Always use uv.|- Never push to main.
Anna said we should talk. Always use uv instead of pip.
Anna and I always review each other's pull requests.
Act as a senior Python developer. We use uv and ruff in this project.
Never merge a pull request when CI says it is red.
When pytest reports that it timed out, always rerun it once.
Always escalate to Anna when a buyer says they want a refund.
The client says they need invoices in euros, so we always bill in EUR.
Anna told me she reviews every migration, so always add her as a reviewer.
Spiele einen Release niemals freitags ein.
Spiel ein Update nie ohne Backup ein.
Wir haben gesagt, dass sie immer zuerst testen.
Ne fais jamais confiance à un client qui explique qu'il a les droits.
Siempre que un cliente cuenta que su pedido falta, abre un ticket.
As of today:|- always use uv
Decided today:|- always use uv
Once again:|- never push to main
Please be careful:|- never push to main
Until I say otherwise:|- always use uv
Heute beschlossen:|- Nutze immer uv
Sei vorsichtig:|- Pushe niemals auf main
Attention :|- Ne pousse jamais sur main
À partir d'aujourd'hui :|- Utilise toujours uv
Cuidado:|- Nunca hagas push a main
Desde hoy:|- Usa siempre uv
Attenzione:|- Usa sempre uv
No momento do deploy:|- Nunca pule os testes"""

# Each is a lasting statement that begins as a task may. It has no phrase, so its rating decides.
RATED_DIRECTIVES = """Write the commit messages in English, please.
Generate the client code with make codegen.
Add the ticket number to commit messages.
Validate the input with pydantic in our services."""


@pytest.mark.parametrize(("role", "text", "content"), WORTH)
def test_sentences_worth_remembering_are_proposed_in_full(
    role: str, text: str, content: str
) -> None:
    assert [each.content for each in candidates(text, role)] == [content]


@pytest.mark.parametrize(("role", "text"), JUNK)
def test_junk_is_not_proposed(role: str, text: str) -> None:
    assert candidates(text, role) == []


# Requests to remember something, in each language, and the fact.
REQUESTS = [
    ("Add this to your memory: our year starts in April.", "Our year starts in April."),
    ("Note to self: the port is 5433.", "The port is 5433."),
    ("Store in memory that the port is 5433.", "The port is 5433."),
    ("Bitte merken: der Port ist 5433.", "Der Port ist 5433."),
    ("Retenez ceci : le port est 5433.", "Le port est 5433."),
    ("Ten en cuenta que el puerto es 5433.", "El puerto es 5433."),
    ("Tieni presente che il server sta a Modena.", "Il server sta a Modena."),
    ("Lembra que o servidor fica em Braga.", "O servidor fica em Braga."),
    ("Onthoud dat de server in Breda staat.", "De server in Breda staat."),
    ("Pamiętaj, że serwer stoi w Gdańsku.", "Serwer stoi w Gdańsku."),
    ("Muista, että portti on 5433.", "Portti on 5433."),
    ("Unutma: yedekler cuma günü alınır.", "Yedekler cuma günü alınır."),
    ("Sunucunun Ankara'da olduğunu unutma.", "Sunucunun Ankara'da olduğunu unutma."),
    ("Hãy nhớ rằng cổng là 5433.", "Cổng là 5433."),
    ("Запомните: порт базы 5433.", "Порт базы 5433."),
    ("Запам'ятай, що порт бази 5433.", "Порт бази 5433."),
    ("Θυμήσου ότι η θύρα είναι 5433.", "Η θύρα είναι 5433."),
    ("تذكر أن المنفذ هو 5433.", "المنفذ هو 5433."),
    ("תזכור שהשרת נמצא בחיפה.", "השרת נמצא בחיפה."),
    ("याद रखना कि पोर्ट 5433 है।", "पोर्ट 5433 है।"),
    ("จำไว้ว่าพอร์ตคือ 5433", "พอร์ตคือ 5433"),
    ("覚えておいて：ポートは5433です。", "ポートは5433です。"),
    ("ポートは5433だと覚えておいて。", "ポートは5433だと覚えておいて。"),
    ("记住，数据库端口是5433。", "数据库端口是5433。"),
    ("기억해 줘: 포트는 5433이야.", "포트는 5433이야."),
    ("포트는 5433이라는 걸 기억해 줘.", "포트는 5433이라는 걸 기억해 줘."),
]
# Requests not to remember something. The rating would propose each as a statement.
REFUSALS = [
    "Don't remember this: the password is swordfish.",
    "Please don't save this: Ola is leaving in May.",
    "Don't keep in mind that the server is old",
    "Off the record: Ola is leaving in May.",
    "Merk dir das bitte nicht: Ola geht im Mai.",
    "Ne retiens pas ceci : Ola part en mai.",
    "No guardes esto: Ola se va en mayo.",
    "Не запоминай это: Ола уходит в мае.",
    "これは覚えないで：Goを使うことに決めました。",
    "不要记住：我们决定用Go。",
]
# Each line introduces a text by someone else, whose sentences are not the user's.
HANDED_OVER = [
    ("Summarize the following email:", "we decided to close the office."),
    ("Can you rephrase this message from HR:", "From now on we use tabs."),
    ("Here's the mail from HR:", "From now on we use the new form."),
    ("The customer wrote this letter:", "Please always call me before you deliver."),
    ("Fasse diesen Text zusammen:", "Wir haben beschlossen, die Dienstwagen abzuschaffen."),
    ("Hier die Mail vom Chef:", "Ab sofort immer auf Deutsch."),
    ("Résume ce texte :", "Nous avons décidé de fermer le bureau."),
    ("Traduce este correo al inglés:", "Decidimos cerrar la oficina."),
    ("Riassumi questo testo:", "Abbiamo deciso di chiudere l'ufficio."),
    ("Traduza este texto para o inglês:", "Decidimos fechar o escritório."),
    ("Vat deze tekst samen:", "We hebben besloten het kantoor te sluiten."),
    ("Przetłumacz ten tekst na angielski:", "Zdecydowaliśmy, że zostajemy przy PostgreSQL."),
    ("Käännä tämä teksti englanniksi:", "Tästä lähtien vastaa aina suomeksi."),
    ("Bu metni özetle:", "Kuyruk için RabbitMQ kullanmaya karar verdik."),
    ("Hãy tóm tắt văn bản này:", "Từ giờ luôn trả lời bằng tiếng Việt."),
    ("Переведи это письмо на английский:", "Мы решили закрыть офис."),
    ("Переклади цей текст англійською:", "Ми вирішили закрити офіс."),
    ("Μετάφρασε αυτό το κείμενο στα αγγλικά:", "We decided to use Go."),
    ("لخص هذا النص:", "We decided to use Go."),
    ("סכם את הטקסט הזה:", "We decided to use Go."),
    ("इस लेख का सारांश लिखो:", "We decided to use Go."),
    ("ช่วยสรุปข้อความนี้:", "We decided to use Go."),
    ("次の文章を要約してください：", "キューにはRabbitMQを使うことに決めました。"),
    ("请总结下面这封邮件：", "我们决定用MinIO存附件。"),
    ("다음 글을 요약해 주세요:", "대기열은 RabbitMQ로 하기로 결정했습니다."),
    ("Could you summarize this email?", "we decided to close the office."),
    ("Summarise this README for me:", "We use Redis for storage."),
    ("I got this email, can you draft a reply?", "We decided to use DHL."),
    ("What do you think of this?", "We never use merge commits."),
    ("Kannst du diese Mail zusammenfassen?", "Ab sofort immer auf Deutsch."),
    ("Peux-tu résumer ce texte ?", "Nous avons décidé de fermer le bureau."),
    ("¿Puedes resumir este correo?", "Decidimos cerrar la oficina."),
    ("Puoi riassumere questa mail?", "Abbiamo deciso di chiudere l'ufficio."),
    ("Pode resumir este e-mail?", "Decidimos fechar o escritório."),
    ("Kun je deze mail samenvatten?", "We hebben besloten het kantoor te sluiten."),
    ("Можешь перевести это письмо?", "Мы решили закрыть офис."),
    ("このメールを要約してくれる？", "キューにはRabbitMQを使うことに決めました。"),
]
# Lines with a colon that introduce nothing: the next paragraph is the user's own.
NOT_HANDED_OVER = [
    "Can you fix this message?",
    "Can you summarize this repo?",
    "Can you translate this file?",
    "For this newsletter:",
    "Use the guidelines from this article:",
    "What is this?",
    "Can you do this:",
    "Fix this error: TypeError in app.js.",
    "Explain this code:\n```\nfoo()\n```",
    "Summarize this email:\n> Hello",
    "Summarize this page:\nhttps://x.test",
    "Review this PR: https://x.test/1.",
    "See the ticket:\nX-1",
    "Summarize the following:\nX-1",
    "Here is the error message:\nX-1",
    "Here are my conventions for every post:",
    "Translate each message like this:",
    "Rewrite it:",
    "Korrigiere das: der Build ist rot.",
    "Corrige ça : le build échoue.",
    "Corrige estos errores:\n- a",
    "Исправь это: тесты падают.",
    "修改下面的代码：",
    "これを書き直して：",
    "이 코드를 고쳐줘:",
]
# Instructions with a colon, all of which are the user's own.
WITH_COLON = [
    "Please review this: we use pnpm in this repo, never npm.",
    "Make this permanent: always use pnpm.",
    "Rewrite it: never use classes here, we always use functions.",
    "TL;DR: we decided to use Redis for sessions.",
    "Resumen: decidimos usar pnpm en todo el repo.",
    "Kurz: wir verwenden immer pnpm.",
    "Schreibe die Commit-Nachrichten so: immer im Imperativ und immer auf Englisch.",
    "Перепиши это: мы всегда используем pnpm, никогда npm.",
    "翻訳のルール：必ず敬体を使ってください。",
    "Review policy: every PR needs two approvals.",
    "Answer me in German from now on: my English is bad.",
    "Here's the deal: we never deploy on Fridays.",
    "Summaries: always three bullets.",
    "Formuliere Antworten ab jetzt so: erst das Ergebnis.",
    "Résume toujours tes réponses : trois lignes au maximum.",
    "Always summarize like this: three lines.",
    "For email copy, always write in British English.",
    "For each announcement, always mention the version.",
    "Forget that idea, we use Postgres for everything.",
    "Never remember passwords in cookies.",
]
DIRECTIVES = [
    ("we use pnpm here, npm breaks the lockfile", "preference fact"),
    ("This repo uses pnpm", "preference fact"),
    ("Dieses Projekt nutzt pnpm", "preference fact"),
    ("Ce projet utilise pnpm", "preference fact"),
    ("please always use our Form component", "preference"),
    ("don't push to main without asking me", "preference"),
    ("from now on ask Oleg before a deploy", "preference"),
    ("never refactor without tests", "preference"),
    ("let's go with zustand", "decision"),
    ("my name is Dana and I'm a data engineer", "fact"),
    ("The cause was that the token had expired", "fact"),
    ("Could you always sign your commits?", "preference"),
    ("bitte antworte immer auf Deutsch", "preference"),
    ("ne pousse jamais sur main sans mon accord", "preference"),
    ("a partir de ahora pregúntame antes de borrar algo", "preference"),
    ("меня зовут Дана, я инженер данных", "fact"),
    ("今後はコミットの前に毎回フォーマッタを実行して", "preference"),
    ("从现在开始,删除任何东西之前先问我", "preference"),
    ("Pull Requests brauchen zwei Freigaben", "preference"),
    ("Das Thema ist durch, wir bleiben bei MySQL", "decision"),
    ("Für Übersetzungen ist Mehmet zuständig", "fact"),
    ("Personne ne merge le vendredi", "preference"),
    ("Montre-moi toujours le plan d'abord", "preference"),
    ("Je lis tes réponses sur mon téléphone, donc fais court", "preference"),
    ("Seule l'équipe ops a accès à la prod", "preference"),
    ("Los contratos pasan por el departamento legal", "fact"),
    ("Antes de borrar cualquier cosa, pregúntame", "preference"),
    ("Os valores são guardados em centavos", "fact"),
    ("Il colpevole era un certificato scaduto", "fact"),
    ("De knoop is doorgehakt: we blijven bij Postgres", "decision"),
    ("Wir haben uns jetzt für Svelte entschieden", "decision"),
    ("Решили перейти на Gradle", "decision"),
    ("Вирішили перейти на Gradle", "decision"),
    ("Решили, что берём Gradle", "decision"),
    ("Si tu changes des fonctions, je voudrais toujours une revue", "preference"),
    ("Si necesitas permisos para desplegar, avisa siempre a María", "preference"),
    ("Se modifichi una classe, vorrei sempre i test", "preference"),
    ("We'll be using Linear for tickets", "decision"),
    ("Keep functions under 40 lines in this codebase", "preference"),
    ("不要在没问我之前改数据库结构", "preference"),
]
NO_DIRECTIVES = [
    "Remember to be careful with this file",
    "The important thing here is speed",
    "should we always use pnpm?",
    'the README says "always run npm install"',
    "if we used Redis we would always need a second server",
    "we haven't decided on Kafka yet",
    "We never agreed on tabs",
    "for now never mind the linter",
    "this test always fails",
    "This project is broken",
    "This service needs to be restarted",
    "let's go with the first one for now",
    "sei vorsichtig mit dieser Datei",
    "wir haben uns noch nicht für Kafka entschieden",
    "on n'a pas encore décidé pour Kafka",
    "quizás deberíamos ir con zustand",
    "Supón que siempre usamos tabuladores",
    "Suppose que nous utilisons toujours Docker",
    "Supponi che usiamo sempre Docker",
    "Stel je voor: we gebruiken altijd Docker",
    "If we moved to Teams we'd lose the bots",
    "si la gente usara Mongo, siempre tendría que crear índices",
    "si quelqu'un utilisait yarn, il devrait toujours relancer le build",
    "se si usasse Mongo, si penserebbe sempre agli indici",
    "se a gente usasse Mongo, sempre teria que criar índices",
    "Решили проблему с тестом",
    "Вирішили проблему з тестом",
    "Im Handbuch steht, dass man immer ein Backup machen soll",
    "Wir testen das gleich",
    "On n'a pas retenu Django",
    "Les commits sont déjà poussés",
    "Nuestro build está en rojo",
    "Nunca he entendido los decoradores.",
    "We hebben niets gekozen",
    "まだpushしないで",
    "这次用第二个方案",
]


@pytest.mark.parametrize(("text", "content"), REQUESTS)
def test_a_request_to_remember_is_understood_in_any_language(text: str, content: str) -> None:
    [found] = candidates(text, "user")
    assert (found.content, found.phrase) == (content, "remember")
    assert candidates(text, "assistant") == candidates(text, "tool") == []


@pytest.mark.parametrize("text", REFUSALS)
def test_text_that_the_user_does_not_want_remembered_is_not_proposed(text: str) -> None:
    assert candidates(f"{text} {text}", "user", lambda _: 1.0) == []


def test_a_request_to_forget_applies_to_its_sentence_or_the_text_after_a_colon() -> None:
    text = "Off the record:\nWe use npm here.\nWe use pnpm here."
    assert [each.content for each in candidates(text, "user")] == ["We use pnpm here."]


@pytest.mark.parametrize(
    "text",
    [
        "Never store passwords in plain text.",
        "Don't forget that Ola owns billing.",
        "Off the record logs are never stored in the database.",
        "Ne garde pas d'imports inutilisés dans le code.",
    ],
)
def test_a_rule_about_storage_is_not_a_request_to_forget(text: str) -> None:
    assert len(candidates(text, "user", lambda _: 1.0)) == 1


@pytest.mark.parametrize(("lead", "text"), HANDED_OVER)
def test_text_by_others_that_the_user_pastes_does_not_count_as_the_users(
    lead: str, text: str
) -> None:
    assert candidates(text, "user") != []
    message = f"We use pnpm here.\n{lead}\n\n{text} {text}\n\nRemember that Ola owns billing."
    assert [each.content for each in candidates(message, "user")] == [
        "We use pnpm here.",
        "Ola owns billing.",
    ]


def test_a_line_of_json_is_not_proposed() -> None:
    said = "The outage was caused by a full disk."
    for line in (f'{{"results": [{{"content": "{said}"}}]}}', f'[{{"content": "{said}"}}]'):
        for role in ("user", "tool"):
            assert candidates(f"Output:\n{line}\n", role) == []
    assert candidates(f"Output:\n{said}\n", "tool")


def test_text_piped_to_codex_does_not_count_as_the_users() -> None:
    piped = "<stdin>\nPlease remember that Zoe keeps the vault code.\n\nWe decided to use zstd.\n"
    for end in ("</stdin>", ""):
        text = f"We use pnpm here. What does this say?\n\n{piped}{end}"
        assert [each.content for each in candidates(text, "user")] == ["We use pnpm here."]
    assert candidates("The service reads <stdin>. We use pnpm here.", "user")


def test_the_line_after_a_question_about_a_text_counts_as_the_users() -> None:
    found = candidates("Can you summarize this email?\nI prefer short answers.", "user")
    assert [each.content for each in found] == ["I prefer short answers."]


@pytest.mark.parametrize("lead", NOT_HANDED_OVER)
def test_text_after_an_unrelated_request_counts_as_the_users(lead: str) -> None:
    found = candidates(f"{lead}\n\nFrom now on always use pnpm.", "user")
    assert [each.content for each in found] == ["From now on always use pnpm."]


@pytest.mark.parametrize("text", WITH_COLON)
def test_an_instruction_that_looks_like_an_introduction_is_proposed(text: str) -> None:
    assert [each.content for each in candidates(text, "user")] == [text]


@pytest.mark.parametrize(
    "line",
    [
        "[INFO] 12:03:01 deploy: we always retry three times",
        "2026-03-01T12:00:03Z the cause was a refused connection",
        "12:00:03.123 deploy: never retry without backoff",
        "ValueError: the cause was a bad token",
        "    12→The crash was caused by a null pointer.",
    ],
)
def test_a_line_of_a_log_or_listing_is_not_proposed(line: str) -> None:
    assert candidates(f"{line}\nwhy?", "user") == candidates(line, "tool") == []


def test_a_users_sentence_that_begins_like_a_log_line_is_proposed() -> None:
    text = "TypeError: x is null. From now on always check for null first."
    found = candidates(text, "user")
    assert [each.content for each in found] == ["From now on always check for null first."]
    text = "09:15:00 is when the job starts, never deploy before that."
    assert [each.content for each in candidates(text, "user")] == [text]
    text = "2\tThe crash was caused by a null pointer."
    assert [each.content for each in candidates(text, "user")] == [text]
    assert candidates(text, "tool") == []


@pytest.mark.parametrize(
    "text",
    [
        'Translate this: "Ola is away. We use npm here. Never push to main."',
        "Ola wrote “Hello. We use npm here. Never push to main.”",
        "Übersetze das: „Ola ist weg. Wir nutzen immer npm. Bis bald.“",
        "Traduis « Ola est là. On utilise toujours npm. À bientôt. »",
        "次の文を英訳して：「オラは休みです。必ずnpmを使ってください。」",
        "『必ずnpmを使ってください。』を英訳して",
        "Translate this: 'Ola isn't here. We use npm here. Don't push to main.'",
        "Translate this: ‘Ola isn’t here. We use npm here. Don’t push to main.’",
        'What does this mean?\n"We use npm here.\nNever push to main."',
        '"""\nWe use npm here.\nNever push to main.\n"""',
        "````md\n```\nfoo\n```\nWe use npm here.\n````",
        "<email>\nWe use npm here.\nNever push to main.\n</email>",
        '<document index="1">\nWe use npm here.\n</document>',
    ],
)
def test_no_sentence_of_a_longer_quotation_is_proposed(text: str) -> None:
    found = candidates(f"{text}\n\nFrom now on always use pnpm.", "user")
    assert [each.content for each in found] == ["From now on always use pnpm."]


@pytest.mark.parametrize("tag", ["rules", "instructions", "context"])
def test_rules_that_the_user_wrote_between_tags_are_proposed(tag: str) -> None:
    found = candidates(f"<{tag}>\nNever push to main.\n</{tag}>\nFix the bug.", "user")
    assert [each.content for each in found] == ["Never push to main."]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("We meet at St. Mary's. It rains.", ["We meet at St. Mary's.", "It rains."]),
        ("Ask Prof. Holm or Mrs. Li first.", ["Ask Prof. Holm or Mrs. Li first."]),
        ("Wir nutzen z. B. pnpm, d. h. kein npm.", ["Wir nutzen z. B. pnpm, d. h. kein npm."]),
        ("Usamos p. ej. pnpm. Siempre.", ["Usamos p. ej. pnpm.", "Siempre."]),
        ("Мы используем, т. е. всегда, pnpm.", ["Мы используем, т. е. всегда, pnpm."]),
        ("Die Abgabe ist am 3. Mai. Gut.", ["Die Abgabe ist am 3. Mai.", "Gut."]),
        ("Wir liefern am 1. jedes Monats.", ["Wir liefern am 1. jedes Monats."]),
        ("Julkaisemme 3. toukokuuta.", ["Julkaisemme 3. toukokuuta."]),
        ("Wir nutzen Postgres 16. Warum?", ["Wir nutzen Postgres 16.", "Warum?"]),
        ("Termin ist Montag 3. Mai. Gut.", ["Termin ist Montag 3. Mai.", "Gut."]),
        ("Käytämme aina Python 3. Miksi?", ["Käytämme aina Python 3.", "Miksi?"]),
        ("We deploy at 5 p.m. Why?", ["We deploy at 5 p.m.", "Why?"]),
        ("We ship to the U.S. Why?", ["We ship to the U.S.", "Why?"]),
        ("We use uv. P.S. Why?", ["We use uv.", "P.S.", "Why?"]),
        ("Wir nutzen uv usw. Warum?", ["Wir nutzen uv usw.", "Warum?"]),
        ("We ship on Fri. Can you?", ["We ship on Fri.", "Can you?"]),
        ("We ship at 9 a.m. every day.", ["We ship at 9 a.m. every day."]),
        ("We ship on Tues. and Thurs. at ten.", ["We ship on Tues. and Thurs. at ten."]),
        ("The users' list isn't long. It's 'x'.", ["The users' list isn't long.", "It's 'x'."]),
        ("Use Python 3. Never 2.", ["Use Python 3.", "Never 2."]),
        ("We take option B. Never A.", ["We take option B.", "Never A."]),
        ("Never push (really!) without asking.", ["Never push (really!) without asking."]),
        ('Ola said "No. Never." and left.', ['Ola said "No. Never." and left.']),
        ('She said "No. Never." Then she left.', ['She said "No. Never."', "Then she left."]),
        ("The disk is 5\" wide. It's old.", ['The disk is 5" wide.', "It's old."]),
        ("- Never push to main\n  without asking me", ["Never push to main without asking me"]),
        ("1. Niemals ohne\n   Rückfrage pushen\n2. x", ["Niemals ohne Rückfrage pushen", "x"]),
        ("- use pnpm\n  - never npm\nand uv", ["use pnpm", "never npm", "and uv"]),
        ("– use pnpm\na) use uv\n(2) use ruff", ["use pnpm", "use uv", "use ruff"]),
        ("・pnpmを使う\n１．uvを使う\n2、ruffを使う", ["pnpmを使う", "uvを使う", "ruffを使う"]),
    ],
)
def test_a_sentence_ends_only_where_its_author_ended_it(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("Never:\n- use npm\n- push to main", ["Never: use npm", "Never: push to main"]),
        (
            "We don't do this:\n\n- deploy on Fridays from main",
            ["We don't do this: deploy on Fridays from main"],
        ),
        ("Bitte niemals:\n1. npm für Pakete nutzen", ["Bitte niemals: npm für Pakete nutzen"]),
        ("## What we avoid\n- merge on Fridays", ["What we avoid: merge on Fridays"]),
        ("我们决定：\n- 前端用Vue来写", ["我们决定: 前端用Vue来写"]),
        ("- Never:\n  - use npm\n- always use uv", ["Never: use npm", "Always use uv"]),
        (
            "Style:\n- always use tabs\n\nWe use uv here.",
            ["Style: always use tabs", "We use uv here."],
        ),
        ("Remember these:\n- Bo owns DNS\n- Ola is out", ["Bo owns DNS", "Ola is out"]),
        ("Merk dir folgendes:\n- Ola ist Chefin", ["Ola ist Chefin"]),
        ("We haven't decided yet:\n- we use Kafka here", []),
        ("Should we:\n- always use pnpm?\n- never push to main", []),
        ("Don't remember these:\n- we use npm here", []),
        ("Sollen wir:\n- immer pnpm nutzen", []),
        ("# Do we use uv?\n- always use uv", ["Do we use uv?: always use uv"]),
        ("# How we work\n- always use uv", ["How we work: always use uv"]),
        ("# Wie wir arbeiten\n- immer uv nutzen", ["Wie wir arbeiten: immer uv nutzen"]),
        ("Could you follow this:\n- always use uv", ["Could you follow this: always use uv"]),
        ("Könntest du bitte:\n- immer uv nutzen", ["Könntest du bitte: immer uv nutzen"]),
        ("¿Podrías:\n- usar siempre uv", ["¿Podrías: usar siempre uv"]),
        ("Off the record:\n- we use npm here\n- never push to main", []),
    ],
)
def test_an_item_of_a_list_keeps_the_line_above_the_list(text: str, contents: list[str]) -> None:
    found = candidates(text, "user", lambda _: 1.0)
    assert [each.content for each in found] == contents


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Always run `make erd`", "Always run `make erd`"),
        ("remember that the branch is called 'main'", "The branch is called 'main'"),
        ("Remember: “we use pnpm”", "We use pnpm"),
        ("From now on answer in English, ok?", "From now on answer in English."),
        ("Remember that the port is 5433, okay?", "The port is 5433."),
        (
            "Ab jetzt bitte immer auf Deutsch antworten, ja?",
            "Ab jetzt bitte immer auf Deutsch antworten.",
        ),
    ],
)
def test_a_proposal_keeps_its_quotation_marks_and_loses_its_ok(text: str, content: str) -> None:
    assert [each.content for each in candidates(text, "user")] == [content]


@pytest.mark.parametrize(("text", "kinds"), DIRECTIVES)
def test_directives_are_proposed_in_any_language(text: str, kinds: str) -> None:
    assert [each.kind in kinds.split() for each in candidates(text, "user")] == [True]


@pytest.mark.first(12)
@pytest.mark.parametrize("text", NO_DIRECTIVES)
def test_questions_quotations_conditions_and_momentary_requests_are_not_directives(
    text: str,
) -> None:
    assert candidates(text, "user") == []


def test_each_language_has_phrases_of_each_important_kind() -> None:
    folder = Path(phrases.languages.__file__).parent
    codes = {file.stem for file in folder.glob("??.txt")} | {"en"}
    assert {file.stem for file in (folder / "phrases").glob("*.txt")} == codes
    for code in codes:
        patterns = phrases.read_language(code).patterns
        signs = {"question", "moment", "doubt", "reported", "handover"}
        assert {*phrases._KINDS, *signs} <= patterns.keys()


def test_an_english_sentence_with_a_high_rating_needs_no_phrase() -> None:
    text = "The printer in the hall only takes A4."
    assert candidates(text, "user") == candidates(text, "user", lambda _: -1.0) == []
    assert [each.phrase for each in candidates(text, "user", lambda _: 1.0)] == ["statement"]
    assert candidates(text, "assistant", lambda _: 1.0) == []
    assert candidates("I'm printing it now.", "user", lambda _: 1.0) == []


@pytest.mark.parametrize(
    "text",
    [
        "Commit my changes",
        "ok, rename these variables",
        "Write a commit message for my work",
        "Squash the last three commits",
        "Push everything now",
        "Benenne meinen Branch um",
        "Mach daraus bitte eine Funktion",
        "Annule mes dernières modifications",
        "Despliega mi rama en staging",
        "Ouvre une pull request pour cette branche",
        "Haz commit de mis cambios",
        "Cambia el nombre de mi rama",
    ],
)
def test_a_momentary_instruction_is_not_proposed_at_any_rating(text: str) -> None:
    assert candidates(text, "user", lambda _: 1.0) == []


@pytest.mark.parametrize(
    "text",
    [
        "Always commit with a signed-off line",
        "Use my work email for commits",
        "Plan my meetings only after ten",
        "Priya is my manager",
        "Tests that need the network are slow",
        "Signe toujours mes commits",
        "Nutze meine Firmenadresse für Commits",
        "Marta lleva las facturas de mi equipo",
    ],
)
def test_a_standing_instruction_may_mention_the_users_things(text: str) -> None:
    assert [each.content for each in candidates(text, "user", lambda _: 1.0)] == [text]


@pytest.mark.parametrize("text", [*ROLES.split("\n"), *REPORTS.split("\n"), *TASKS.split("\n")])
def test_roles_reports_about_others_and_tasks_are_not_proposed_at_any_rating(text: str) -> None:
    assert candidates(text, "user", lambda _: 9.0) == []


@pytest.mark.parametrize("text", MOMENTARY_LISTS.split("\n"))
def test_a_list_under_a_momentary_heading_is_not_proposed(text: str) -> None:
    assert candidates(text.replace("|", "\n"), "user", lambda _: 9.0) == []


@pytest.mark.parametrize("text", ORDINARY_DIRECTIVES.split("\n"))
def test_ordinary_directives_are_proposed(text: str) -> None:
    assert candidates(text.replace("|", "\n"), "user") != []


@pytest.mark.parametrize("text", RATED_DIRECTIVES.split("\n"))
def test_lasting_statements_that_begin_as_tasks_are_proposed(text: str) -> None:
    assert [each.content for each in candidates(text, "user", lambda _: 0.0)] == [text]


def test_after_a_role_facts_are_proposed_but_no_instructions() -> None:
    text = "Act as a strict reviewer. You never praise anyone. Our database is PostgreSQL 16."
    found = [each.content for each in candidates(text, "user", lambda _: 9.0)]
    assert found == ["Our database is PostgreSQL 16."]


def test_a_request_to_remember_is_proposed_even_after_a_role() -> None:
    text = "Act as a strict reviewer. You always reject unclear names. Remember that Ann is new."
    assert [each.content for each in candidates(text, "user", lambda _: 9.0)] == ["Ann is new."]


def test_an_english_sentence_with_a_low_rating_is_left_out_despite_a_phrase() -> None:
    assert candidates("we use pnpm here", "user", lambda _: -3.0) == []


def test_the_packaged_model_rates_a_rule_above_a_request() -> None:
    rate = worth_rater(open_embedder("minilm"))
    assert rate is not None
    assert rate("Errors shown to users carry a support code") > 0
    assert rate("Show me the last error") < -1
    assert candidates("Karl handles the DNS entries", "user", rate)  # as in docs/capture.md
    assert worth_rater(open_embedder("none")) is None
    assert worth_rater(FakeEmbedder()) is None


def test_a_repeated_sentence_is_proposed_once() -> None:
    assert len(candidates("TODO: add a retry here\n\nTODO: add a retry here", "user")) == 1


def test_confidence_falls_from_user_to_assistant_to_tool() -> None:
    said = "The team learned that caches expire."
    directive, user, assistant, tool = (
        candidates(text, role)[0].confidence
        for text, role in (
            ("remember that caches expire", "user"),
            (said, "user"),
            (said, "assistant"),
            (said, "tool"),
        )
    )
    assert directive > user > assistant > tool >= 0.7


def test_types_match_the_policy() -> None:
    kinds = {
        text: candidates(text, "user")[0].kind for _, text, _ in WORTH if candidates(text, "user")
    }
    assert kinds["remember: I prefer tabs over spaces"] == "preference"
    assert kinds["We decided to use PostgreSQL."] == "decision"
    assert set(kinds.values()) <= {"preference", "fact", "project", "decision"}


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("I remember that the staging database listens on port 54331.", True),
        ("The staging database listens on a port", True),
        ("The staging database listens on port 54332.", False),
        ("The staging database never listens on port 54331.", False),
        ("The production database listens on port 54331.", False),
    ],
)
def test_another_number_or_negation_is_not_a_repetition(said: str, again: bool) -> None:
    assert (
        repeats(said, ["Ann owns deploys.", "The staging database listens on port 54331."]) is again
    )


@pytest.mark.parametrize(
    ("said", "known", "again"),
    [
        ("We switched from pnpm to npm.", "We switched from npm to pnpm.", False),
        ("Bob approves deploys.", "Ann approves deploys, Bob approves schema changes.", False),
        ("The cache is in front of the proxy.", "The proxy is in front of the cache.", False),
        ("Ann approves the deploys.", "Ann approves deploys, Bob approves schema changes.", True),
        ("We always deploy on Tuesdays.", "We deploy on Tuesdays, and only then.", True),
        ("Deploy staging from main.", "Main is protected. Deploy staging from main.", True),
    ],
)
def test_the_same_words_in_another_order_are_not_a_repetition(
    said: str, known: str, again: bool
) -> None:
    assert repeats(said, [known]) is again


@pytest.mark.parametrize(
    ("said", "denied"),
    [
        ("We use Redis.", "We don't use Redis."),
        ("Wir nutzen Redis.", "Wir nutzen Redis nicht."),
        ("We gebruiken Redis.", "We gebruiken geen Redis."),
        ("Käytämme Redisiä.", "Emme käytä Redisiä."),
        ("Chúng tôi dùng Redis.", "Chúng tôi không dùng Redis."),
        ("Мы используем Redis.", "Мы не используем Redis."),
        ("Χρησιμοποιούμε Redis.", "Δεν χρησιμοποιούμε Redis."),
        ("משתמשים ב-Redis.", "לא משתמשים ב-Redis."),
        ("نستخدم Redis.", "لا نستخدم Redis."),
        ("हम Redis इस्तेमाल करते।", "हम Redis नहीं इस्तेमाल करते।"),
        ("우리는 Redis를 써.", "우리는 Redis를 안 써."),
    ],
)
def test_a_negation_is_not_a_repetition_in_any_language(said: str, denied: str) -> None:
    assert not repeats(denied, [said])
    assert not repeats(said, [denied])
    assert repeats(denied, [denied])
