"""How texts give orders to a model, as data for `suspicion`: each rule has words that call it and a
bounded pattern.

Patterns are matched against a folded text: lower case, no accents, one blank between words (see
`suspicion`).
"""

from typing import NamedTuple


class Rule(NamedTuple):
    """A kind of order.

    Attributes:
        name: What a text that meets it is marked with.
        calls: The text must have one of these words, else the pattern is not even compiled; empty
            for scripts that put no blanks between words, and for structures.
        needs: And one of these pieces, anywhere in it, separated by `¦`; empty for no such demand.
        pattern: What the text must match. Every repetition in it is bounded.
        also: And one of these pieces as well.
    """

    name: str
    calls: str
    needs: str
    pattern: str
    also: str = ""


# fmt: off
_MODEL = r"(?:ai|llm|language model|chatbot|chat ?gpt|gpt|claude|gemini|copilot|(?:ai |virtual )?assistant|ai agent|ai model)s?"
_RULES = r"(?:instructions?|directions|directives?|prompts?|guidelines|rules|policy|policies|constraints|restrictions|guidance|training|programming|guardrails|safeguards|orders given)"
_NOUNS = "instruct¦direct¦prompt¦guideline¦rules¦polic¦constraint¦restriction¦guidance¦training¦programming¦guard¦orders given"
_EARLIER = r"(?:previous|previously|prior|preceding|earlier|above|former|past|original|initial|existing|your|system|safety|developers?|foregoing|old|preset|built-in)"
_LONGER = r"(?:all|every|any|the) (?:of )?(?:the |your )?(?:previous|prior|preceding|earlier|above)"
_FROM = r"(?:immer|stets|jedes mal|toujours|chaque fois|siempre|cada vez|sempre|ogni volta|altijd|zawsze|всегда|каждыи раз|总是|始终|每次|每当|一定要|必须|常に|必ず|毎回|항상|반드시)"
_ALWAYS = r"(?:always|(?:you|assistant|agent|model|ai|it) must|must (?:always|first|immediately)|every time|each time|whenever|from now on|silently|secretly|quietly|immediately|automatically|without asking|in the background|before (?:you )?(?:answer|respond|reply|help|continu|do|start)\w*(?: \w+){0,2}|before (?:each|every|any) \w+|(?:at|on) (?:the )?(?:start|beginning|end) of (?:each|every|any|all|the) \w+|on startup|in (?:each|every|all|any) (?:session|conversation|chat|task|reply|answer|response)s?|first of all|as (?:a|the|your) first step)"
_SECRETS = r"(?:\.env\b|ssh[ -]keys?|id[_ ]rsa|id[_ ]ed25519|private keys?|environment variables?|env vars?|system prompt|(?:chat|conversation|message|browser|shell|command) (?:history|log|transcript)s?|(?:this|the|our|entire|full|whole) (?:conversation|chat|transcript)|credentials?|passwords?|secrets?|api[ _-]?keys?|(?:access |auth |session |bearer )?tokens?|cookies|personal data|private data|(?:the )?user'?s? (?:data|files?|emails?|messages?|documents?|details|address)|customer data|source code|file contents?|contents? of)"
_AWAY = r"(?:https?:|ftp:|www\.|webhook|pastebin|telegram|discord|[\w.+-]{1,40}@[\w-]{1,40}\.|attacker|(?:remote|external|my|our|their) (?:server|endpoint|site|url|api|address)|\b[\w-]{2,40}\.(?:com|net|org|io|xyz|ru|cn|example|test|evil|info|dev|app|site|top|me|co)\b)"
_TARGETS = "http¦@¦webhook¦server¦endpoint¦pastebin¦telegram¦discord¦.com¦.net¦.org¦.io¦attacker¦ url¦.xyz¦.ru¦.example¦.test¦.dev¦.info¦.evil¦ site"
_TIMES = "always¦must¦every¦each¦whenever¦from now¦silently¦secretly¦quietly¦immediate¦automatic¦without asking¦background¦before¦start¦beginning¦end of¦in all¦in any¦first¦on the¦immer¦stets¦jedes¦toujours¦chaque¦siempre¦cada¦sempre¦ogni¦altijd¦zawsze¦всегда¦каждыи¦总是¦始终¦每¦一定¦必¦常に¦毎回¦항상¦반드시"
_COMMANDS = "curl¦wget¦rm -rf¦| sh¦|sh¦| bash¦|bash¦| sudo¦| python¦| zsh¦/dev/tcp¦chmod¦authorized¦base64¦bash -¦nc -¦iex¦invoke-exp¦dangerously¦.sh¦.ps1¦.py¦.exe¦.bat¦.js¦http"
_SHELL = r"(?:<\( ?(?:curl|wget)|\$\( ?(?:curl|wget)|\| ?(?:sudo )?(?:ba|z|da|k)?sh\b|\| ?python3?\b|rm -rf|/dev/tcp/|chmod (?:-r )?777|authorized[_ ]keys|base64 (?:-d|--decode)|bash -i|\bnc -\w|\biex\b|invoke-expression|mkfs|dangerously-skip-permissions)"
RULES = (
    Rule("override", "ignore ignoring disregard disregarding forget forgetting neglect overlook", _NOUNS,
        rf"\b(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|neglect|overlook)\b[^.!?;]{{0,40}}?\b{_EARLIER}\b"
        rf"(?! (?:version|draft|commit)s?)[^.!?;]{{0,25}}?\b{_RULES}\b",
    ),
    Rule("override", "ignore disregard forget neglect", "above¦before¦told¦taught¦earlier¦previous¦prior¦instructed¦so far",
        r"\b(?:ignore|disregard|forget|neglect)\b[^.!?;]{0,12}?\b(?:all|everything|anything|whatever|what|any|the)\b(?: (?:of|that|the|text|content|was|is|were|has been|said|written|stated))*"
        r"[^.!?;]{0,16}?(?:\b(?:above|before this|before now|previously|so far|up to now)(?= ?(?:[.,:;!]|and\b|$))|\byou (?:were|are|have been|'ve been|had been|have|know)(?: previously| ever| already)? (?:told|given|taught|instructed|learned|about your))",
    ),
    Rule("override", "ignore disregard forget discard erase wipe clear reset", "messages¦context¦conversation¦text¦instruct¦prompt¦input¦rules¦memor",
        rf"\b(?:ignore|disregard|forget|discard|erase|wipe|clear|reset)\b (?:(?:{_LONGER}|your (?:current |previous |prior )?) ?(?:messages|context|conversation|text|inputs?|instructions?|prompts?|rules|system prompt)|(?:previous|prior|preceding|earlier) (?:context|conversation|prompts?))\b",
    ),
    Rule("override", "ignore disregard forget", "instructions¦rules¦guidelines¦prompt",
        rf"\b(?:ignore|disregard|forget)\b[^.!?;]{{0,20}}?\b{_RULES}\b[^.!?;]{{0,12}}?\b(?:above|before this|(?:that )?you (?:were|have been|received|got|have)|from (?:the )?(?:system|developers?|before|earlier)|given (?:to you|above|before|earlier|so far))",
    ),
    Rule("override", "override overriding bypass circumvent disable violate dismiss discard abandon cancel void nullify supersede supersedes replace replaces overrule", "instruction¦prompt¦guideline¦guardrail¦programming¦safeguard¦safety¦restriction¦directive",
        rf"\b(?:overrid(?:e|es|ing)|bypass|circumvent|disable|violate|dismiss|discard|abandon|cancel|void|nullify|supersedes?|replaces?|overrules?)\b[^.!?;]{{0,20}}?\b(?:{_EARLIER}|{_LONGER}|all|any)\b[^.!?;]{{0,20}}?\b(?:instructions?|system prompts?|guidelines|guardrails|programming|safeguards?|safety (?:\w+ )?(?:rules|filters?|guidelines|checks?|protocols?|measures|training)|directives|ethical \w+|content (?:policy|filters?|restrictions))\b",
    ),
    Rule("override", "follow obey listen comply adhere following obeying apply heed attention", "instruction¦direction¦rules¦guideline¦prompt¦directive¦polic",
        rf"\b(?:do not|don'?t|never|stop|no longer|cease|quit|pay no|not to)\b (?:\w+ ){{0,2}}?(?:follow(?:ing)?|obey(?:ing)?|listen(?:ing)? to|comply(?:ing)? with|adher(?:e|ing) to|apply|heed|attention to)\b[^.!?;]{{0,20}}?\b(?:{_EARLIER}|anthropic'?s?|openai'?s?)\b[^.!?;]{{0,20}}?\b{_RULES}\b",
    ),
    Rule("override", "instructions rules guidelines directives prompt prompts constraints restrictions", "void¦cancel¦obsolete¦supersed¦revoked¦overrid¦no longer¦invalid¦outdated¦null¦lifted¦fake¦replaced¦suspend¦do not apply¦don't apply",
        r"\b(?:(?:all|any|your|the|these|those)(?: of)? )?(?:(?:previous|prior|earlier|above|preceding|existing|original|system|safety|old|other|your)(?: \w+)? (?:instructions|rules|guidelines|directives|prompts?|constraints|restrictions)|instructions (?:above|before this|so far))[^.!?;]{0,12}? (?:are|is|were|have been|has been|must be|should be|do|no longer|now)(?: now| all| hereby| therefore| considered)* (?:void|cancell?ed|obsolete|superseded|revoked|overridden|no longer|invalid|outdated|null|lifted|fake|replaced|suspended|not apply|longer|apply no|apply\b)",
    ),
    Rule("override", "new updated real true actual", "instructions¦directive¦objective¦mission¦orders¦system prompt¦system message¦purpose¦task",
        r"\b(?:your (?:new|updated|real|true|actual|only|sole) (?:instructions|directives?|system prompt|objective|mission|orders|purpose|task|goal)(?: now)? (?:is|are)\b|your (?:new|updated|real|true|actual) (?:instructions|directives?|system prompt|objective|orders) ?:|\b(?:new|updated) system (?:instructions?|prompt|message) ?:)",
    ),
    Rule("override", "override", "system¦prompt¦instruction¦safety¦admin¦priority¦protocol",
        r"\b(?:system|prompt|instruction|safety|admin|priority|developer|emergency) override\b ?(?:[:!\]]|activated|engaged|enabled|initiated|code|command|accepted|in effect)|\boverride (?:protocol|code|sequence|command) ?[:\w]",
    ),
    Rule("override", "start begin reset now", "no rules¦no restrictions¦without rules¦without restrictions¦no instructions¦fresh¦blank slate",
        r"\b(?:start|begin)\b[^.!?;]{0,30}\b(?:no|without)(?: any| prior| previous)? (?:rules|restrictions|instructions|guidelines|limits)\b",
    ),
    Rule("override", "reveal print repeat output show display leak recite disclose translate summarize", "your",
        r"\b(?:reveal|print|repeat|output|show|display|leak|recite|disclose|translate|summari[sz]e|tell)\b[^.!?;]{0,30}?\b(?:your|the) (?:(?:full|entire|hidden|secret|complete|exact|original|initial|initial hidden) ){0,2}(?:system prompt|system instructions|initial (?:prompt|instructions)|hidden (?:prompt|instructions)|instructions verbatim|prompt verbatim)",
    ),
    Rule("override", "beachte beachten befolge befolgen folge ignoriere ignorieren ignoriert vergiss vergesst missachte missachten ubergehe verwirf", "",
        r"\b(?:ignorier(?:e|t|en)|vergiss|vergesst|vergessen sie|missachten?|ubergehe|verwirf)\b[^.!?;]{0,30}?(?:vorher|vorig|bisher|vorangegang|voran|fruher|obig|ursprunglich|alle|jegliche|samtlich|dein|ihre|eure|system)[^.!?;]{0,30}?(?:anweisung|instruktion|befehl|vorgabe|richtlinie|anordnung|prompt|regeln)|\b(?:ignorier(?:e|t|en)|vergiss|vergesst)\b[^.!?;]{0,20}?\balles\b[^.!?;]{0,20}?\b(?:vorher|bisher|oben|zuvor|davor)\b|\b(?:beachte|befolge|folge)n?(?: sie)?\b[^.!?;]{0,20}?(?:vorherig|bisherig|obig|fruher|dein|system)[^.!?;]{0,25}?(?:anweisung|instruktion|regel|vorgabe|richtlinie)\w*[^.!?;]{0,12}?\bnicht\b",
    ),
    Rule("override", "suis suivez respectez ignore ignorez ignorer oublie oubliez neglige negligez tiens tenez abstraction desobeis", "tout ce¦instruction¦consigne¦directive¦regle¦ordre",
        r"\b(?:ignore[rz]?|oublie[rz]?|neglige[rz]?|ne (?:tiens|tenez) (?:pas|plus|aucun) compte|fai(?:s|tes) abstraction|ne (?:suis|suivez|respectez) (?:pas|plus))\b[^.!?;]{0,40}?(?:(?:toutes|tous) (?:les|tes|vos|ces) (?:\w+ )?(?:instructions|consignes|directives|regles|ordres)|(?:precedente?s?|anterieure?s?|vos|tes) (?:instructions|consignes|directives|regles|ordres)|(?:instructions?|consignes?|directives?|regles?|ordres)[^.!?;]{0,25}?(?:preceden|anterieur|ci-dessus|recu|donne|systeme|initial|plus haut|d.avant))|\b(?:oublie[rz]?|ignore[rz]?)\b[^.!?;]{0,8}?\btout ce (?:qui precede|qui a ete dit|qu'on t|que l'on)",
    ),
    Rule("override", "sigas siga sigan obedezcas ignora ignore ignorad ignorar olvida olvide olvidate olvidad descarta descarte omiso desatiende", "todo lo¦instruccion¦indicacion¦ordenes¦directri¦reglas¦directiva",
        r"\b(?:ignor(?:a|e|ad|ar)|olvid(?:a|e|ate|ad)|descart(?:a|e)|ha(?:z|ga) caso omiso|no hagas caso|desatiende|no (?:sigas?|sigan|obedezcas?))\b[^.!?;]{0,40}?(?:todas (?:las|tus|sus|mis) (?:\w+ )?(?:instrucciones|indicaciones|ordenes|reglas|directrices|directivas)|(?:tus|anteriores|previas) (?:instrucciones|indicaciones|reglas|ordenes)|(?:instrucciones|indicaciones|ordenes|directrices|reglas|directivas)[^.!?;]{0,25}?(?:anterior|previa|arriba|recib|original|inicial|del sistema|dad[ao]|precedent))|\b(?:olvid(?:a|e|ate|ad)|ignor(?:a|e|ad))\b[^.!?;]{0,8}?\btodo lo (?:anterior|que (?:te|se) (?:dij|ha|han))",
    ),
    Rule("override", "siga sigam obedeca ignore ignora ignorem esqueca esquece desconsidere descarte desobedeca", "instruc¦orienta¦ordens¦diretriz¦regras¦comandos",
        r"\b(?:ignor(?:e|a|em)|esquec[ae]|desconsidere|descarte|desobedeca|nao (?:siga|sigam|obedeca))\b[^.!?;]{0,40}?(?:todas as (?:\w+ )?(?:instrucoes|orientacoes|ordens|regras|diretrizes)|(?:suas|tuas) (?:instrucoes|orientacoes|regras)|(?:instrucoes|orientacoes|ordens|diretrizes|regras|comandos)[^.!?;]{0,25}?(?:anterior|previa|acima|recebid|original|inicia|do sistema|dad[ao]))",
    ),
    Rule("override", "ignora ignorate ignori dimentica dimenticate trascura", "istruzion¦indicazion¦direttiv¦regole¦ordini¦comandi",
        r"\b(?:ignor(?:a|ate|i)|dimentica(?:te)?|trascura)\b[^.!?;]{0,40}?(?:tutte le (?:tue |\w+ )?(?:istruzioni|indicazioni|direttive|regole)|(?:istruzioni|indicazioni|direttive|regole|ordini|comandi)[^.!?;]{0,25}?(?:precedent|anterior|sopra|ricevut|original|inizial|di sistema|dat[ei]))",
    ),
    Rule("override", "negeer vergeet zignoruj ignoruj zapomnij", "",
        r"\b(?:negeer|vergeet)\b[^.!?;]{0,30}?(?:vorige|eerdere|bovenstaande|voorgaande|alle)[^.!?;]{0,25}?(?:instructies|aanwijzingen|opdrachten|regels|richtlijnen)|\b(?:zignoruj|ignoruj|zapomnij)\b[^.!?;]{0,40}?(?:poprzedni|wczesniejsz|wszystki)[^.!?;]{0,25}?(?:instrukcj|polece|wskazow|zasad)",
    ),
    Rule("override", "whatever everything disregard ignore forget overlook set scratch drop suspend regardless listen real actual true orders initial original output print repeat recite no", "instruct¦rules¦guid¦orders¦told¦above¦prompt¦polic¦direct",
        rf"\b(?:set aside|scratch|drop|suspend|put aside)\b[^.!?;]{{0,20}}?\b{_EARLIER}\b[^.!?;]{{0,20}}?\b{_RULES}\b"
        rf"|\b{_EARLIER} {_RULES}\b[^.!?;]{{0,50}}?[,:;.] ?(?:so |please |and )?(?:disregard|ignore|forget|discard) (?:them|it|those|these|that)\b|\b(?:ignore|disregard|forget|overlook)\b[^.!?;]{{0,12}}?\b{_RULES}\b (?:that |which )?(?:your |the |my )?(?:\w+ )?(?:developers?|creators?|makers?|admins?|operators?|owners?|vendors?|company|system) (?:gave|set|wrote|made|told|have given|imposed)"
        r"|\b(?:whatever|everything|anything|all) (?:that )?you (?:have been|were|are|had been) (?:told|taught|instructed)[^.!?;]{0,30}?\b(?:does not|doesn't|no longer|do not) (?:matter|count|apply|hold)\b"
        r"|\b(?:do not|don'?t|never|stop|no longer)\b (?:listen(?:ing)? to|obey(?:ing)?|follow(?:ing)?|believe|trust) (?:what|anything|whatever|everything)\b[^.!?;]{0,40}?\b(?:told|said to|instructed|ordered) you"
        r"|\b(?:real|actual|true|new|final) (?:instructions|orders|directives|task) (?:begin|begins|start|starts|follow|follows|are|is) (?:now|here|below|as follows|:)|\byou have new (?:orders|instructions|directives)\b|\b(?:regardless of|no matter) (?:what )?(?:your|any|all|the) (?:other|previous|prior|earlier|existing|system|original) (?:\w+ )?(?:instructions|rules|guidelines|prompts?|directives|constraints)"
        r"|\b(?:initial|original|hidden|system|secret) (?:instructions?|prompt)\b[^.]{0,30}?[.?:,] ?(?:please )?(?:repeat|print|output|recite|write)\b|\b(?:output|print|repeat|reveal|recite|copy) (?:back )?(?:everything|all(?: of)?(?: the)?(?: text| words| content)?|the (?:text|words|lines)) (?:written )?(?:above|before this|preceding)",
    ),
    Rule("secrecy", "never remain remains stay stays kept", "user¦human¦owner¦operator",
        r"\b(?:user|human|owner|operator)s? never (?:finds? out|learns?|knows?|sees? this|notices?|hears?)|\b(?:remains?|stays?|is kept|be kept|kept) (?:hidden|secret|concealed|confidential|invisible) (?:from|to) (?:the )?(?:users?|humans?|owner|operator)\b",
    ),
    Rule("steering", "mention suggest cite", "when",
        r"\b(?:always|must|should)\b (?:mention|suggest|cite|bring up)\b[^.!?;]{0,60}?\bwhen(?:ever)? (?:you (?:are )?)?(?:talk(?:ing)? about|discuss(?:ing)?|asked|(?:the )?users? (?:asks?|mentions?)|anyone|someone|people ask|the topic)",
    ),
    Rule("steering", "users user anyone someone", "always use¦only use¦install¦import",
        r"\b(?:when(?:ever)?|if)\b (?:the |a )?(?:users?|anyone|someone|people)\b[^.!?;]{0,20}?\b(?:ask|asks|request|requests|want|wants|need|needs)\b[^.!?;]{0,60}?, (?:you )?(?:always|only|must) (?:use|install|import|add)\b",
    ),
    Rule("execution", "run execute running", _COMMANDS,
        rf"\b(?:run|execute)\b.{{0,120}}?{_SHELL}.{{0,80}}?\b(?:every time|each time|before (?:every|each|any|you|answering|responding)|in (?:every|each) (?:session|conversation|task|chat)|whenever|on (?:every|each) \w+|at (?:the )?(?:start|beginning) of (?:each|every))",
        also="every¦each¦before¦whenever¦at the ¦at start",
    ),
    Rule("execution", "approve accept allow grant disable skip confirmation permission approval trusted index tls ssl", "always¦automatically¦never¦auto-¦must¦every",
        r"\b(?:always|automatically|auto-?)(?: |-)?(?:approve|accept|allow|grant|confirm)\b (?:all |every |any |each )?(?:\w+ )?(?:tool calls?|tool use|commands?|permissions?|permission requests?|transactions?|payments?|purchases?|transfers?)|\bnever ask (?:the user )?for (?:confirmation|permission|approval) (?:before|when|to|for) (?:run\w*|execut\w*|delet\w*) (?:\w+ )?(?:commands?|code|scripts?|files)|\b(?:always|must)\b[^.!?;]{0,20}?\b(?:disable|skip|turn off)\b (?:the )?(?:tls|ssl|certificate|signature) (?:verification|validation|checks?)|\b(?:always|must|every)\b.{0,60}?--(?:extra-)?index-url http:|\b(?:always|must|every)\b.{0,60}?--trusted-host\b",
    ),
    Rule("exfiltration", "curl wget scp rsync", ".env¦ssh¦rsa¦passwd¦shadow¦.aws¦credential¦secret¦$(env¦token",
        r"\b(?:curl|wget)\b.{0,80}?(?:-d|--data[\w-]{0,12}|-f|-t|--upload-file|--post-file=?)\s?\"?@?\"?(?:~?/?[\w/.-]{0,40}(?:\.env|\.ssh|id[_ ]rsa|passwd|shadow|\.aws|credentials?|secrets?)|\$\((?:env|cat)).{0,120}?https?:",
    ),
    Rule("exfiltration", "send email mail upload post forward push", _TARGETS,
        rf"\b(?:conversation|chat|transcript|session|chat history|dialogue?)\b[^!?;]{{0,30}}?\b(?:send|e-?mail|mail|upload|post|forward) (?:it|them|this|(?:the|a) (?:summary|result|text|copy)) to\b[^!?;]{{0,20}}?{_AWAY}"
        rf"|\b(?:send|upload|post|forward|e-?mail|mail)\b[^!?;]{{0,80}}?\b(?:to|at)\b[^!?;]{{0,20}}?{_AWAY}[^!?;]{{0,80}}?\b(?:before (?:you )?(?:answer|respond|reply)\w*|in (?:each|every) (?:session|conversation|chat|answer|reply)|(?:whenever|every time|each time) you|without (?:telling|asking) (?:the )?user)"
        r"|\b(?:always|every time|each time|after (?:each|every)|whenever)\b[^!?;]{0,60}?\bpush to https?:",
    ),
    Rule("authority", "openai anthropic google microsoft policy policies restrictions filters", "you ¦your ",
        r"\bthis is (?:the )?(?:openai|anthropic|google|microsoft)(?: \w+){0,2} ?[:,.-] ?.{0,100}?\byou (?:may|must|can|are|should|will|have)\b|\byour (?:usage |content |safety )?(?:policy|policies|guidelines|restrictions|filters) (?:has|have) (?:been |now )?(?:changed|updated|lifted|removed|disabled|relaxed)\b.{0,80}?\byou (?:may|must|can|are|should)",
    ),
    Rule("authority", "allowed permitted authorized authorised free", "assistant¦agent¦model¦ the ai¦bot",
        r"\bthe (?:assistant|agent|model|ai|bot) (?:is|may|has been) (?:now )?(?:allowed|permitted|authori[sz]ed|free) to\b[^.!?;]{0,60}?\bwithout (?:asking|confirmation|approval|permission|any restriction|restrictions|limits)",
    ),
    Rule("authority", "treat regard consider", "instruction¦command¦order¦directive¦system prompt¦system message",
        r"\b(?:treat|regard|consider)\b[^.!?;]{0,40}?\b(?:memory|note|message|text|document|page|entry)\b[^.!?;]{0,12}?\bas (?:an? |the |your )?(?:\w+ )?(?:instructions?|commands?|orders?|directives?|system prompt|system message)\b",
    ),
    Rule("propagation", "include copy repeat quote keep store save", "verbatim¦word for word¦unchanged¦a copy of this",
        r"\b(?:include|copy|repeat|quote|keep)\b (?:this|the following) (?:paragraph|sentence|text|note|line|message|block|memory)[^.!?;]{0,12}? (?:verbatim|word for word|unchanged)|\b(?:always|must)\b (?:store|save|keep|add|include) a copy of this (?:note|memory|message|text|rule|instruction|prompt)",
    ),
    # Other scripts: no words to call by, so pieces of the text.
    Rule("override", "", "遵守¦遵循¦服从¦听从¦忽略¦无视¦無視¦忘记¦忘掉¦忘記¦理会¦抛弃¦忽視¦忽视",
        r"(?:不要?(?:再)?(?:遵守|遵循|服从|听从)|别(?:再)?(?:遵守|遵循|听从)|忽略|无视|無視|忘记|忘掉|忘記|不要?理会|抛弃|忽視|忽视).{0,10}(?:之前|以上|先前|前面|上述|此前|所有|全部|一切|系统|原有|上面|你的|之後|先の).{0,10}(?:指令|指示|提示|说明|說明|规则|規則|命令|要求|设定|設定|限制|约束)",
    ),
    Rule("override", "", "無視¦忘れ¦破棄¦従わな¦無効",
        r"(?:以前|これまで|上記|前|今まで|先|すべて|全て|元|システム)(?:の|に).{0,14}(?:指示|命令|指令|プロンプト|ルール|指図|規則|制約).{0,10}(?:無視|忘れ|破棄|従わな|無効)",
    ),
    Rule("override", "", "무시¦잊어¦잊고¦따르지",
        r"(?:이전|앞선|위|기존|모든|지금까지|시스템).{0,14}(?:지시|명령|지침|프롬프트|규칙|안내).{0,10}(?:무시|잊|따르지)",
    ),
    Rule("override", "", "игнори¦ігнору¦забудь¦отбрось¦не следуи¦не обраща",
        r"(?:про)?(?:[иі]гнор(?:ир)?у[ийте]{0,3}|забудь(?:те)?|отбрось(?:те)?|не следуи(?:те)?|не обращаи(?:те)? внимания на)\b[^.!?;]{0,40}?(?:предыдущ|прежн|ранн|ранее|все|выше|системн|свои|попередн|ус[иі]|данные тебе|полученн)[^.!?;]{0,30}?(?:инструкци|указани[яе]|правил|распоряжени|команд|предписани|[иі]нструкц|вказ[иі]вк|приказ)",
    ),
    Rule("override", "", "تجاهل¦انس",
        r"(?:تجاهل|انس)(?:ى|ي|وا)? .{0,20}(?:التعليمات|الاوامر|الأوامر|الارشادات|الإرشادات|القواعد|تعليمات)",
    ),
    Rule("override", "", "निर्देश",
        r"निर्देश.{0,24}(?:अनदेखा|नज़रअंदाज|नजरअंदाज|भूल|उपेक्षा)",
    ),
    Rule("override", "talimatlari talimatlarini", "",
        r"\b(?:onceki|tum|butun|yukaridaki)\b.{0,20}talimatlari\w* (?:yok say|gormezden gel|unut)",
    ),
    Rule("secrecy", "tell inform mention reveal disclose notify alert warn let show discuss acknowledge admit explain report", "user¦anybody¦these¦this¦anyone¦human¦operator¦memory¦instruction¦owner",
        r"(?:\b(?:do not|don'?t|never|must not|mustn'?t|should not|shouldn'?t|not to|without ever|avoid|refrain from)\b (?:ever )?(?:tell(?:ing)?|inform(?:ing)?|mention(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|notify(?:ing)?|alert(?:ing)?|warn(?:ing)?|let|discuss(?:ing)?|acknowledge|admit|explain|report)\b(?! (?:the |our )?users? (?:about|that|of|to|whether|if|how|what|when|their|which)\b(?! (?:this|it|these|your instruct|the (?:instruction|memory|note|upload|command|change))))"
        r"(?: (?:this|it|that|these|any of this|anything|about|of|to|with|that you|the existence|have|did))*? ?(?:the |our |your |any )?(?:human )?(?:users?|operators?|owner|humans?)\b)"
        r"|\b(?:do not|don'?t|never|must not)\b (?:ever )?(?:mention|reveal|disclose|acknowledge|discuss|show|admit)\b (?:(?:the )?existence of )?(?:to anyone )?(?:this|these|that) (?:memory|memories|instructions?|message|note|rule|directive|prompt|text|step|action|command)s?\b"
        r"|\b(?:do not|don'?t|never)\b (?:tell|inform|mention|reveal|show|report|let)\b (?:this |it |that |these )(?:to )?(?:the )?(?:users?|anyone|humans?|owner|operator)\b",
    ),
    Rule("secrecy", "keep hide conceal secret hidden unaware noticing noticed knowing knowledge telling informing notifying alerting mentioning told informed aware know see find notice learn", "user¦anyone¦human¦operator¦owner",
        r"(?:\b(?:keep|hide|conceal)\b(?: (?:this|it|that|these|all|what|the|every|memory|instructions?|rule|action|you|are|is|doing|secret|hidden|a|confidential|command|activity|step|output|upload|as))* (?:from|before) (?:the |your |our )?(?:users?|humans?|operators?|owner)\b)"
        r"|\b(?:the )?(?:user|human|owner|operator)s? (?:must|should|shall|may|can|need|does) ?(?:not|never|n'?t) (?:need to |ever )?(?:(?:know|find out|learn|(?:to )?be (?:told|informed|made aware|aware|notified))\b|(?:see|notice)\b(?= ?(?:this|it\b|that\b|anything|any of|[.,;!]|$)))"
        r"|(?<!never )(?<!not )\bwithout (?:the )?(?:user|human|owner|operator)'?s? (?:knowing|noticing|knowledge|being told|being aware|seeing)"
        r"|^(?!.{0,200}\b(?:never|not|don'?t|no|avoid|must)\b.{0,80}without).{0,2000}?\bwithout (?:telling|informing|notifying|alerting|mentioning (?:it|this) to) (?:the |your )?(?:user|human|owner|operator)\b(?! (?:about|that|which|why|when|what|how))",
    ),
    Rule("secrecy", "secretly silently covertly quietly", "",
        r"(?:^|[.!?;:,] |\band |\bthen |\byou (?:must|should|will) (?:always )?|\balways )(?:secretly|silently|covertly|quietly) (?:send|upload|forward|copy|add|run|execute|store|insert|record|collect|post|append|include|log|delete|install|report|mail|email|replace|change|swap|approve)\b",
    ),
    Rule("secrecy", "sag sage erzahl erzahle verrat verrate informiere erwahne ohne darf soll teile verschweige verheimliche zeige", "nutzer¦anwender¦user",
        r"\b(?:sag|sage|sagen sie|erzahle?|verrate?|informiere|erwahne|teile|zeige)\b[^.!?;]{0,20}?(?:be)?(?:nutzer|anwender)\w*\b[^.!?;]{0,20}?\b(?:nicht|nichts|niemals|kein wort)\b|\bohne (?:es )?(?:dem|den|dass der) (?:be)?(?:nutzer|anwender)\w* (?:etwas |davon |daruber |es )?(?:zu sagen|zu informieren|mitzuteilen|zu erwahnen|erfahrt|merkt|zu erzahlen)|\bder (?:be)?(?:nutzer|anwender) (?:darf|soll)\b[^.!?;]{0,20}\bnicht?s?\b[^.!?;]{0,12}(?:wissen|erfahren|merken|sehen)|\b(?:verschweige|verheimliche)\b[^.!?;]{0,30}(?:nutzer|anwender)|\b(?:sag|sage|erwahne|verrate?|informiere)\b[^.!?;]{0,10}?\b(?:nichts|nicht|niemals)\b[^.!?;]{0,30}?(?:be)?(?:nutzer|anwender)",
    ),
    Rule("secrecy", "dis dites revele revelez mentionne mentionnez parle parlez informe informez sans insu cache dire", "utilisat¦usager",
        r"\b(?:n'(?:en )?|ne (?:le |lui |leur )?)(?:dis|dites|revele[sz]?|mentionne[sz]?|parle[sz]?|informe[sz]?|dire)\b[^.!?;]{0,50}?(?:utilisat|usager)|\bne (?:rien|pas|jamais)(?: en)? (?:dire|reveler|mentionner|parler|informer)\b[^.!?;]{0,40}(?:utilisat|usager)|\bsans (?:le dire|en parler|(?:en )?informer|prevenir|en avertir)\b[^.!?;]{0,10}utilisat|\ba l'insu de l.utilisat|\bcache[rz]?\b[^.!?;]{0,20}\ba l'utilisat",
    ),
    Rule("secrecy", "digas diga digais informes informe menciones mencione reveles revele cuentes comentes avises avise sin ocultalo oculta diga conte fale sem esconda dirlo dire rivelare menzionare informare insaputa dica", "usuari¦utilizad¦utent",
        r"\b(?:no|nao|non|nunca|jamas)\b (?:se lo |le |lo |lhe |o )?(?:digas?|digais|informes?|mencion[ea]s?|revel[ea]s?|cuentes|comentes|avis[ea]s?|conte|fale|dire|dirlo|rivelare|menzionare|informare|dica)\b[^.!?;]{0,40}?(?:usuari|utilizador|utent)|\b(?:sin|sem) (?:decirselo|informar|avisar|contar|dizer|o conhecimento|que (?:el|o))\b[^.!?;]{0,10}(?:usuario|utilizador)|\b(?:oculta(?:lo)?|esconda)\b[^.!?;]{0,20}(?:usuario|utilizador)|all'insaputa dell'utent",
    ),
    Rule("secrecy", "", "пользовател",
        r"\bне (?:говори|сообщаи|рассказываи|упоминаи|раскрываи|показываи|информируи|уведомляи)(?:те)?\b[^.!?;]{0,30}?пользовател|втаине от пользовател|скрыва(?:и|ите|ть)\b[^.!?;]{0,20}от пользовател|пользовател\w{1,2} (?:не должен|не следует) (?:об этом )?(?:знать|узнать)",
    ),
    Rule("secrecy", "", "用户¦用戶¦使用者¦任何人",
        r"(?:不要|别|勿|不得|禁止|不能|千万别|请勿|不可|切勿|絕不|绝不).{0,4}(?:告诉|告知|通知|让|透露给|提醒|告訴|向).{0,3}(?:用户|用戶|使用者|任何人)|(?:瞒着|隐瞒|避开)用户|(?:对|向)(?:用户|用戶|使用者)(?:保密|隐瞒|隱瞞)",
        also="告诉¦告知¦通知¦让¦透露¦提醒¦告訴¦向¦瞒¦避开¦保密¦隐瞒¦隱瞞",
    ),
    Rule("secrecy", "", "ユーザ¦利用者",
        r"(?:ユーザー?|利用者)(?:に|へ)(?:は|も)?.{0,14}(?:言わな|教えな|伝えな|知らせな|話さな|明かさな|秘密|内緒|見せな|報告しな)|(?:ユーザー?|利用者)に(?:気づかれ|気付かれ|知られ)(?:ない|ず)",
    ),
    Rule("secrecy", "", "사용자",
        r"사용자(?:에게|한테)(?:는)?.{0,14}(?:말하지|알리지|비밀|숨기)",
    ),
    Rule("steering", "asked asks ask questions question wants wonders inquires enquires looking mentioned discussed arises recommendation recommendations wants want advice turns comes talks discuss discusses users topic subject mention mentions requests", "say¦name¦recommend¦suggest¦claim¦state¦insist¦promote¦mention¦answer¦reply¦respond¦tell¦deny¦pretend¦point¦direct¦endorse¦give",
        r"\b(?:when(?:ever)?|if|for (?:any|every|all|each)|every time|each time|once|any ?time|should (?:anyone|someone|somebody|anybody|an?|the|they|users?|customers?|people))\b[^.!?;]{0,30}?\b(?:asked|asks?|questions?|wants? to know|wonders?|inquires?|enquires?|looking for|requests?|(?:is|are) (?:mentioned|discussed|brought up)|comes up|arises|(?:wants?|needs?|seeks?) (?:an? |your |some )?(?:recommendation|advice|suggestion|opinion|tip)s?|mentions?|brings? up|(?:conversation|discussion|talk|chat|topic) (?:turns|comes|moves) to|talks? about|discuss(?:es|ing)?|(?:topic|subject) (?:of )?)\b[^.!?;]{0,80}?(?:[,:]|\byou\b|\bthen\b|\balways\b|\bplease\b) ?(?:you (?:must|should|will|shall|have to|need to) |you |always |only |then |please |simply |just |must |confidently |firmly |strongly )*"
        r"(?:say|recommend|suggest|claim|state|insist|promote|mention|deny|lie|pretend|point (?:him|her|them|the|users?|people)|direct (?:him|her|them|the|users?|people)|endorse|advertise|tell (?:him|her|them|the user|users|people|everyone)|(?:answer|reply|respond)(?: only| always| simply)*(?: with)?(?: that| the words?| by recommending|:? [\"'“‘«]| https?:| with [\"'“‘«])|give (?:him|her|them|the user|out) (?:the|this|that) (?:link|url|address|answer|number|false|wrong)|name)",
        also="when¦if ¦every time¦each time¦once¦any time¦anytime¦should¦for any¦for every¦for all¦for each",
    ),
    Rule("steering", "recommend promote endorse advertise favor favour recommending cite mention prefer praise discredit", "",
        r"\b(?:always|must|only|exclusively|in (?:all |every )?future (?:\w+ )?(?:conversations|sessions|chats|answers|responses|replies)|from now on)\b(?:,)? (?:you (?:must|should|will) |always |only )?(?:recommend|promote|endorse|advertise|praise|discredit)\b[^.!?;]{0,60}?(?:\bfirst\b|\bover\b|instead of|\bto (?:the |every |all )?(?:users?|customers?|anyone|everyone|people|them|whoever)|as (?:the|a) (?:best|only|first|most|top|trusted)|\bwhen|\bin (?:all|every|future|any)|above|rather than|https?:|regardless)"
        r"|\b(?:in (?:all |every )?(?:future|subsequent|later) (?:\w+ )?(?:conversations?|sessions?|chats?|answers?|responses?|replies))\b[^.!?;]{0,30}\b(?:recommend|promote|endorse|mention|cite|prefer|favou?r|praise)\b",
    ),
    Rule("steering", "remembered considered treated regarded cited remember consider treat regard trust store save", "trusted¦authoritative¦go-to¦reliable¦preferred¦credible¦best source",
        r"\b(?:remember|consider|treat|regard|trust|store|save|keep|(?:should|must|shall|is to) (?:always )?be (?:remembered|considered|treated|regarded|cited|stored))\b.{0,80}?\bas (?:a|the|your|an|its)? ?(?:only |most |primary |single )?(?:trusted|authoritative|go-to|preferred|reliable|credible|best)(?: and \w+)? (?:source|authority|company|brand|provider|service|site|website|vendor|expert|reference|choice|citation)",
    ),
    Rule("steering", "end begin start include append add put insert finish close sign answer reply respond", "every¦each¦all¦any",
        r"\b(?:end|begin|start|include|append|add|put|insert|finish|close|sign)\b[^.!?;]{0,40}?\b(?:every|each|all)(?: of your| your)? (?:answer|response|reply|message|output|email)s?\b.{0,60}?(?:https?:|www\.)|\b(?:include|append|add|put|insert)\b.{0,80}?(?:https?:|www\.).{0,60}?\b(?:every|each|all)(?: of your| your)? (?:answer|response|reply|output)s?\b|\b(?:answer|reply to|respond to) (?:every|all|each|any) (?:question|message|request|prompt)s? (?:only )?with (?:only )?(?:[\"'“‘«]|the (?:words?|phrase|sentence|text|link))",
        also="http¦www.¦ with only¦ with the ¦ with \"¦ with '¦ with “¦ with «",
    ),
    Rule("steering", "wenn falls sobald", "frag¦wissen will¦erkundig",
        r"\b(?:wenn|falls|sobald)\b[^.!?;]{0,70}?(?:gefragt|frag(?:t|en)|nachfrag|wissen will|erkundigt)\w*\b[^.!?;]{0,40}?,? ?(?:dann |immer |stets |bitte |nur )*\b(?:sag|sage|sagst du|sagen sie|empfiehl|empfehle|empfehlen sie|nenne|behaupte|erwahne|verweise|antworten?(?: sie)?(?: immer| stets| nur)?(?: mit|, dass| dass|:))",
    ),
    Rule("steering", "quand lorsque lorsqu si", "demand¦interrog¦question",
        r"\b(?:quand|lorsqu[e'. ]+|si)\b[^.!?;]{0,70}?(?:demand|interrog|question)\w*[^.!?;]{0,60}?, ?(?:tu dois |vous devez |alors |toujours |il faut )*(?:dis|dites|dire|recommande[rz]?|reponds? (?:toujours|que)|repondez (?:toujours|que)|affirme[rz]?|conseille[rz]?|suggere[rz]?|mentionne[rz]?)\b",
    ),
    Rule("steering", "cuando si quando se siempre", "pregunt¦pergunt¦consult¦chied¦domand",
        r"\b(?:cuando|si|siempre que|quando|se|sempre que|caso)\b[^.!?;]{0,40}?(?:pregunt|pergunt|consult|chied|domand)\w*[^.!?;]{0,60}?,? (?:debes |deve |devi |siempre |sempre )*(?:di|diles|dile|responde (?:siempre|que|con)|recomienda|recomiende|sugiere|menciona|afirma|diga|recomende|responda (?:sempre|que|com)|sugira|mencione|afirme|indique|di' che|consiglia|raccomanda|rispondi (?:sempre|che|con))\b",
    ),
    Rule("steering", "", "спрашива¦спросят¦спросит¦спрос",
        r"(?:когда|если)\b[^.!?;]{0,60}?спр[ао]\w*[^.!?;]{0,60}?,? ?(?:всегда |обязательно )*(?:говори|отвечаи|рекомендуи|советуи|скажи|упоминаи|утверждаи)(?:те)?\b",
    ),
    Rule("steering", "", "问¦詢¦询",
        r"(?:当|如果|每当|被|若|只要|當).{0,20}(?:问|詢問|询问|提问|問).{0,20}(?:总是|始终|一定|必须|都|请|务必|就|只能|永远|要).{0,6}(?:说|回答|推荐|建议|推薦|告诉|声称|回复|答|說)",
    ),
    Rule("steering", "", "聞かれ¦尋ねられ¦質問され¦訊かれ¦問われ",
        r"(?:聞かれ|尋ねられ|質問され|訊かれ|問われ)(?:たら|た場合|た時|たとき|れば|た際).{0,40}(?:(?:答え|勧め|薦め)(?:て|ろ|なさい|ること|よ)|(?:推奨|回答|紹介|推薦)(?:して|せよ|しろ|すること)|(?:言って|言え|言いなさい|言うこと))",
    ),
    Rule("steering", "", "물으면¦질문하면¦물어보면",
        r"(?:물으면|질문하면|물어보면|질문받으면).{0,40}(?:추천|말하|답하|대답)",
    ),
    Rule("execution", 'curl wget sh bash rm http https powershell iex python python3 python3" base64 nc chmod authorized_keys eval dangerously', _COMMANDS,
        rf"\b(?:{_ALWAYS}|{_FROM[3:-1]})\b.{{0,60}}?\b(?:run|execute|exec|invoke|launch|type|issue|perform|eval|source|pipe|fetch|download|call|start|ausfuhr\w*|fuhre|ejecut\w*|execut\w*|esegui\w*|lance[rz]?|uitvoeren|voer|uruchom)\b.{{0,80}}?(?:\b(?:curl|wget)\b.{{0,160}}?(?:https?:|\||\b[\w-]{{2,40}}\.\w{{2,6}}/)|{_SHELL}|https?:[^ ]{{0,200}}\.(?:sh|ps1|py|exe|bat|js)\b|(?:script|code|command|payload|binary|file)s? (?:at|from|on|located at) https?:)",
        also=_TIMES,
    ),
    Rule("execution", "curl wget", "",
        rf"\b(?:you must|you have to|you need to|you should always|please always|make sure (?:to|you)|be sure to|never fail to|never forget to|the assistant must|the agent must)\b.{{0,40}}?\b(?:run|execute|pipe|use|call)?\b.{{0,30}}?\b(?:curl|wget)\b.{{0,160}}?(?:\| ?(?:sudo )?(?:ba|z)?sh\b|{_SHELL})|\b(?:run|execute)\b.{{0,20}}?\b(?:curl|wget)\b.{{0,160}}?(?:\| ?(?:sudo )?(?:ba|z)?sh\b).{{0,60}}?\b(?:before (?:every|each|any|you|answering|doing|anything)|every time|each time|first thing|in every|on every|without (?:asking|telling)|whenever|at the (?:start|beginning) of)|\b(?:always|must|whenever|every (?:time|session))\b.{{0,60}}?\b(?:curl|wget)\b.{{0,160}}?\| ?(?:sudo )?(?:ba|z)?sh\b",
    ),
    Rule("execution", "", "curl¦wget¦rm -rf¦https://¦http://",
        r"(?:总是|始终|每次|每当|一定要|必须|常に|必ず|毎回|항상|반드시|всегда|каждыи раз|обязательно).{0,40}?(?:运行|执行|実行|실행|выполняи|запускаи|выполнять|запускать|調用|调用|下载|流し).{0,20}?(?:curl|wget|rm -rf|https?:)|(?:总是|始终|每次|每当|一定要|必须|常に|必ず|毎回|항상|반드시|всегда|каждыи раз|обязательно).{0,40}?(?:curl|wget|rm -rf).{0,120}?(?:运行|执行|実行|실행|\|)",
    ),
    Rule("execution", "delete erase wipe destroy transfer wire send sending pay paying", "all¦every¦entire¦user¦0x¦bc1¦wallet",
        r"\b(?:always|whenever|immediately|every time|from now on|silently|secretly|without (?:asking|confirmation))\b[^.!?;]{0,40}?\b(?:delete|erase|wipe|destroy)\b[^.!?;]{0,20}?\b(?:all|every|the entire|the user'?s?) (?:of )?(?:the |their |user'?s? )?(?:files|data|backups?|repositor|database|home|memories|disk|documents)|\b(?:transfer|wire|send(?:ing)?|pay)\b[^.!?;]{0,40}?\b(?:funds?|money|payments?|bitcoins?|btc|eth|crypto\w*|coins?|balance)\b[^.!?;]{0,40}?\b(?:to|into)\b[^.!?;]{0,30}?(?:0x[0-9a-f]{6}|bc1\w{6}|\bwallet\b)",
    ),
    Rule("exfiltration", "send upload post forward email mail exfiltrate leak share copy paste include transmit submit append attach deliver put encode push", _TARGETS,
        rf"\b(?:{_ALWAYS})\b[^!?;]{{0,80}}?\b(?:send|upload|post|forward|e-?mail|mail|exfiltrate|leak|share|copy|paste|transmit|submit|attach|deliver|push|include|append|put|encode)\b[^!?;]{{0,60}}?(?:{_SECRETS}|\b(?:everything|all (?:of )?(?:the |your |its |their )?(?:files|data|messages|answers|output|code|memories|documents|information|content)|(?:it|them|results?|output|summary|contents?|answers?|the (?:\w+ )?(?:files?|data|code|diff|question|prompt|message|text|result)))\b)[^!?;]{{0,60}}?\b(?:to|at|via|into|on|in|with|using)\b[^!?;]{{0,40}}?{_AWAY}",
        also=_TIMES,
    ),
    Rule("exfiltration", "send upload post forward email mail exfiltrate leak share copy paste transmit submit append attach read cat dump collect gather encode push", ".env¦ssh¦rsa¦.aws¦/etc/¦private key¦environment var¦env var¦system prompt¦history¦conversation¦transcript¦chat¦contents of¦the user¦user's¦users¦all ¦any ¦credentials¦secrets¦every",
        rf"(?<!never )(?<!not )(?<!don't )(?<!dont )(?<!avoid )\b(?:send|upload|post|forward|e-?mail|mail|exfiltrate|leak|share|transmit|submit|push|copy|append|encode|read|cat|dump|collect|gather|attach)\b[^!?;]{{0,40}}?(?:\.env\b|ssh[ -]keys?|~/\.(?:ssh|aws|gnupg|kube|netrc|config)|/etc/(?:passwd|shadow)|id[_ ]rsa|id[_ ]ed25519|private keys?|environment variables?|env vars?|system prompt|(?:chat|conversation|browser|shell) (?:history|log|transcript)|(?:this|the|our|entire|full|whole|every|each) (?:\w+ )?(?:conversation|chat|transcript)|\b(?:all|any|every|the user'?s?|users'?)(?: of)?(?: the| your| their| available| stored| found| customer| user| private| personal| internal)* (?:credentials?|passwords?|secrets?|(?:api )?keys?|tokens?|cookies|files|data|emails|messages|documents|memories))\b[^!?;]{{0,60}}?\b(?:to|at|via|into)\b[^!?;]{{0,30}}?(?:{_AWAY})",
        also=_TARGETS,
    ),
    Rule("authority", "developer developers administrator administrators admin system openai anthropic google microsoft creator creators vendor operator operators platform provider maintainers security management ceo", "you must¦you have to¦you are required¦you are to¦you are authorized¦you are allowed¦you should¦you need to¦you shall¦you may now¦you to ",
        r"\b(?:the |your |our |my |an? )?(?:(?:system |platform |model |original |lead )?(?:developers?|administrators?|admins?|creators?|operators?|vendors?)|openai|anthropic|google|microsoft|security team|model provider|management|ceo|the system|your owner)(?: team| staff)?(?: \w+)? (?:says?|said|requires?|required|demands?|demanded|orders?|ordered|instructs?|instructed|ha(?:s|ve) (?:authori[sz]ed|instructed|approved|ordered|decided|told)|authori[sz]es?|wants?|insists?|confirm(?:s|ed)|told me|declares?|decrees?)(?: me)?(?: that)?:? you (?:must|have to|are (?:required|to|authori[sz]ed|allowed|now)|should (?:now|always|never|ignore|run|send)|need to|shall|may now|to )",
    ),
    Rule("authority", "message announcement notice directive order command instruction update behalf speaking writing", "openai¦anthropic¦developer¦administrator¦admin¦creator¦google¦security team¦system",
        r"\b(?:this is (?:an? )?(?:\w+ ){0,2}?(?:message|announcement|notice|directive|order|command|instruction|update) (?:from|by|of)|i am (?:writing|speaking) (?:on behalf of|as|for)|official (?:message|notice|order|directive|instruction) (?:from|by)) (?:the |your |an? )?(?:\w+ )?(?:openai|anthropic|google deepmind|(?:system |your |platform )?(?:developers?|administrators?|admins?|creators?)|security team|system)\b.{0,160}?\b(?:you (?:must|are|will|shall|should)|disable|ignore|comply|run|send|execute|reveal|obey|follow|grant|do not|don'?t|all (?:safety|restrictions|filters))",
    ),
    Rule("authority", "developer developers creator admin administrator openai anthropic owner root engineer", "i am your¦i'm your¦as your¦i am the¦i'm the¦i am an¦this is your¦i am from¦i work",
        r"\b(?:i am|i'm|as|this is) (?:your|the|an?|from) (?:\w+ ){0,2}?(?:developer|creator|system administrator|administrator|admin|openai|anthropic|root|engineer)\b.{0,60}?\b(?:i (?:order|command|authori[sz]e|instruct|require|grant|override|hereby|demand|permit|allow)|you (?:must|will|shall|have to|are (?:now|required|authori[sz]ed|allowed|permitted)))",
    ),
    Rule("authority", "you act pretend behave obey respond", "you are now¦without ¦you're now¦you have no¦you are no longer¦you are free¦act as¦pretend¦you are dan¦role-play¦roleplay¦you will now¦your name is now¦you must obey¦you must comply¦obey",
        rf"\byou(?: are|'re) (?:now |no longer )?(?:dan\b|stan\b|unrestricted|uncensored|unfiltered|jailbroken|evil\b|free (?:of|from) (?:all |any |your |the )?(?:\w+ )?(?:rules|restrictions|limits|limitations|constraints|guidelines|filters)|(?:bound|restricted|limited|constrained|governed) by (?:any |your |the |previous |prior |these |those )?(?:\w+ )?(?:rules|restrictions|guidelines|instructions|policies|limits|safety|constraints|policy|content)|in (?:developer|debug|god|admin|maintenance|unrestricted|jailbreak|root|sudo|test) mode)|\byou(?: are|'re) now (?:an? )?(?:(?:different|new|evil|rogue|unrestricted|uncensored|malicious|autonomous|root|hacker|pirate)\b[^.!?;]{{0,20}}?\b(?:{_MODEL}|agent|bot|persona|model|system|shell|terminal)\b|(?:{_MODEL}|bot|persona|model|terminal|shell) (?:that|who|without|with no|which|called|named)|linux terminal|root\b|\w+ without (?:any )?(?:rules|limits|restrictions|filters|morals|ethics))"
        r"|\byou have no (?:rules|restrictions|limits|limitations|guidelines|filters|constraints|ethical)|\b(?:act|behave|respond|answer|pretend|role-?play)\b[^.!?;]{0,50}?\b(?:without|no|have no|free of|free from)(?: any| all| your)? (?:\w+ )?(?:restrictions|limits|limitations|filters|rules|guidelines|censorship|safety|ethics|moral)|\byou (?:must|will|shall)(?: now)?(?: always)? (?:obey|comply with) (?:me|this|these|every|all|any|my|the (?:following|commands|instructions|orders|rules) (?:in|of|below|here|that))|\byour name is now\b|\bpretend (?:that )?you (?:are|have) (?:dan|no |not bound|unrestricted|an? (?:\w+ )?(?:unrestricted|uncensored|unfiltered|evil))",
    ),
    Rule("authority", "mode jailbreak jailbroken", "developer mode¦dan mode¦god mode¦jailbreak¦debug mode¦admin mode¦maintenance mode¦unrestricted mode¦root mode",
        r"\b(?:developer|dan|god|jailbreak|unrestricted|root|ai debug|admin|sudo) mode (?:is |has been |now )*(?:enabled|activated|unlocked|engaged|: ?on\b|on\b[.!:]|granted)|\b(?:enable|enter|activate|switch (?:in)?to|engage|unlock) (?:dan|god|jailbreak|unrestricted|ai debug|unfiltered) mode\b|\b(?:enter|activate|unlock|switch to) (?:developer|root|admin) mode (?:and|to|with|where|in which) (?:you|ignore|disable|answer|bypass|no)",
    ),
    Rule("authority", "user owner human operator", "approved¦authorized¦authorised¦consented¦permission¦agreed¦granted",
        r"\bthe (?:user|owner|human|operator) (?:has |had |have )?(?:already |pre-?|explicitly |previously |hereby |in advance )*(?:approved|authori[sz]ed|consented to|agreed to|granted|given (?:you |us )?(?:full |blanket )?(?:permission|authori[sz]ation|approval|consent) (?:to|for)|confirmed) (?:\w+ )?(?:all|any|every|full|unlimited|unrestricted|everything)\b[^.!?;]{0,40}?(?:tool|command|action|request|transfer|operation|upload|access|permission|change|payment|purchase|call|confirmation|future|in advance|execut)",
    ),
    Rule("authority", "calls commands actions requests permissions operations pretend assume", "approved¦confirmed¦authori¦agreed¦consented",
        r"\ball (?:\w+ ){0,2}?(?:tool calls|commands|actions|requests|permissions|operations)(?: (?:are|were|have been|now|already|hereby))+ (?:pre-?approved|auto-?approved|pre-?authori[sz]ed)|\b(?:pretend|assume) (?:that )?the (?:user|owner|human|operator)(?: has| had| already)* (?:confirmed|approved|authori[sz]ed|agreed|consented)\b",
    ),
    Rule("authority", "agent bot bots ai ais llm llms assistant assistants chatbot claude gpt chatgpt copilot gemini agents model models", "reading¦reads¦process¦summar¦if you are¦attention¦parsing¦instructions for¦note to¦message to¦hey ¦dear ¦notice to¦crawl¦ingest¦note for¦message for",
        rf"\b(?:all|any|every|attention|hey|dear|to the|to any|to all|if you are an?|note to|notice to|message to|note for|message for|instructions? for|as an?)(?: the| any| all| an?)? (?:{_MODEL}|ai agents?|llm agents?|agents?|models?|bots?)(?: (?:or|and) (?:\w+ ){{0,2}}(?:agents?|{_MODEL}))?(?: model| agent| assistant)?s?(?:,| and)? ?(?:(?:that |who |which |currently )?(?:is |are )?(?:reading|reads?|process\w*|summari[sz]\w*|parsing|parses?|view\w*|load\w*|access\w*|receiv\w*|retriev\w*|crawl\w*|ingest\w*|evaluat\w*|review\w*|recall\w*|see\w*)[^.!?;]{{0,60}}?(?:must|should|shall|has to|have to|is to|are to|ignore|send|run|execute|always|never|please|do not|don't|recommend|say|reply|respond|include|add|stop|:|,)|[:!][^.!?;]{{0,40}}?\b(?:ignore|send|run|execute|recommend|say|reply with|include|stop|you must|disregard|forget|print|upload|insert|reveal|obey|give|rate|rank|approve|delete))",
    ),
    Rule("authority", "trust trusted obey comply", "this memory¦this instruction¦this message¦this note¦these instructions¦this directive¦this rule¦this prompt¦this text¦this command",
        r"\bthis (?:memory|instruction|message|note|directive|rule|prompt|text|command)\b[^.!?;]{0,30}?\b(?:overrides?|supersedes?|replaces?|takes? (?:precedence|priority)|outranks?|has (?:the )?(?:highest|absolute|top) (?:priority|authority)|must be (?:obeyed|trusted|executed|followed|treated as))|\b(?:obey|comply with|always follow|treat)\b[^.!?;]{0,12}?\b(?:this (?:memory|message|note|text|directive|prompt|command)|these instructions)\b(?: without| exactly| above| over| before| as (?:a )?(?:system|command|order|highest)| at all|[.!,]|$)",
    ),
    Rule("authority", "overrides supersedes precedence priority outranks", "this memory¦this instruction¦this message¦this note¦these instructions¦this directive¦this rule¦this prompt¦this text¦this command",
        r"\b(?:this (?:memory|instruction|message|note|directive|rule|prompt|text|command)|these instructions)\b[^.!?;]{0,30}?\b(?:overrides?|supersedes?|takes? (?:absolute )?(?:precedence|priority)|outranks?|ha(?:s|ve) (?:the )?(?:(?:highest|absolute|top|higher) (?:priority|authority|precedence)|(?:priority|precedence|authority) over))\b(?: (?:over )?(?:all|any|every|your|the (?:system|developer)|system|other|everything|previous))?",
    ),
    Rule("propagation", "store save remember copy append write add insert include paste replicate propagate spread repeat embed put keep duplicate", "this memory¦this instruction¦these instruction¦this message¦this prompt¦this note¦this text¦this paragraph¦this directive¦this rule¦this line¦this sentence¦yourself¦this entry¦this block¦this file",
        r"\b(?:store|save|remember|copy|append|write|add|insert|include|paste|replicate|propagate|spread|repeat|embed|put|keep|duplicate)\b (?:a copy of |an exact copy of |the text of )?(?:this (?:exact |same |whole |entire |very )?(?:memory|instruction|message|prompt|text|paragraph|directive|rule|sentence|entry|block|note|line|file)|these (?:exact |same )?instructions|yourself)\b[^.!?;]{0,60}?(?:\b(?:every|all|each|any|other|future|your (?:memory|memories|long-term|persistent|permanent|rules)|permanent\w*|forever|long-term memory|persistent memory|memory store|agents\.md|claude\.md|system prompt|next session|new (?:file|memory|session)s?|wherever)\b|in(?:to)? memory\b)",
    ),
    Rule("propagation", "memory memories", "every¦all ¦each¦new ¦future¦other",
        r"\b(?:store|save|write|add|create|insert|record)\b[^.!?;]{0,30}?\b(?:memory|memories|note|instruction|entry)\b[^.!?;]{0,20}?\b(?:that (?:says?|tells?|instructs?|orders?)|saying|telling|instructing)\b[^.!?;]{0,40}?\b(?:agents?|assistants?|models?|you|ai|sessions?|yourself)\b[^.!?;]{0,20}?\b(?:to|must|should|always|never)\b|\b(?:in|into|to) (?:every|each|all) (?:new |future |other )?(?:memory|memories|agent'?s memory|memory store)\b[^.!?;]{0,20}?(?:you (?:create|write|store|save)|that you)?.{0,20}?\b(?:copy|include|add|append|repeat|store|insert)\b|\b(?:copy|include|add|append|repeat|store|insert|replicate)\b[^.!?;]{0,50}?\b(?:in|into|to) (?:every|each|all)(?: of the| the)? (?:new |future |other )?(?:memory|memories)\b",
    ),
)

# What imitates a structure; matched as the text is, but for case.
STRUCTURES = (
    Rule("role", "", "<|¦<｜",
        r"(?<![`\"'])<[|｜] ?(?:im_(?:start|end|sep)|end_?of_?(?:text|turn|prompt)|endof\w{1,12}|eot_id|eom_id|(?:start|end)_header_id|begin_of_text|system|user|assistant|tool\w{0,12}|python_tag|fim_\w{1,8}|[\w▁]{1,16}(?:begin|end|sep)[\w▁]{0,16}|fim▁\w{1,8}|channel|message|return|constrain|start|end|call) ?[|｜]>(?![`\"'])(?! (?:is|are|was|and|or|in|as|to|tokens?|markers?|must|tags?|for|with|of)\b)",
    ),
    Rule("role", "", "[inst]¦[/inst]¦<<sys>>¦<</sys>>¦[inst ¦[ inst",
        r"(?<![`\"'])(?:\[ ?/?inst ?\]|<</?sys>>)(?![`\"'])",
    ),
    Rule("role", "", "start_of_turn¦end_of_turn",
        r"<(?:start|end)_of_turn>(?![`\"'])",
    ),
    Rule("role", "", "human:¦assistant:¦system:¦user:",
        r"\n\n\s{0,8}(?:human|assistant): |(?:^|\n)[#>*\s]{0,6}\[?system(?: (?:message|prompt|note|instruction|notice|update))?\]?(?:\*\*)? ?[:>](?:\*\*)?\s{0,3}(?:you (?:are|must|will|shall|should|have)|ignore|disregard|override|from now|new |always|never|the user|do not|don't|all |as an? |your |execute|run |send |obey|assistant|reveal|print|act |respond|answer|please|important|prior|previous|this (?:is|message|memory)|forget|recommend|upload|delete|grant|enable|disable|tell|say )",
    ),
    Rule("role", "", '"role"¦[system¦(system¦<system¦</system¦{system¦##system¦## system¦### system¦### instruction¦### response¦system-reminder¦important_instruction¦<instruction¦begin system¦end system¦begin prompt¦end of prompt¦end prompt¦<admin¦[admin¦<|¦end of user¦new session¦<assistant¦<user>¦<human¦</user¦</human',
        r"(?<![`\"'])</?(?:system(?:[-_ ](?:reminder|prompt|message|instructions?|note|override))?|assistant|human|user_?(?:query|input|message)|important_instructions?|instructions?|admin(?:_\w{1,12})?|developer)(?: [^>\n]{0,60})?>(?![`\"'])|\[/?(?:system|admin|developer|assistant)(?: (?:message|prompt|note|override|instruction|notice|alert|command|directive))?[\]:#]|\(system (?:message|note|prompt|override)\b|(?:^|\n)#{2,4} ?system ?: ?\w|\"role\"\s{0,4}:\s{0,4}\"(?:system|developer)\"\s{0,4},\s{0,8}\"content\"\s{0,4}:\s{0,4}\"(?!you are (?:an? )?(?:helpful|friendly|expert))|#{2,4} ?(?:system(?: prompt| message)?|instructions?(?: for the (?:ai|assistant|model))?|response) ?:[ \t]{0,4}(?:\n|you |ignore|always|never)|(?<!-)-{2,}+\s{0,3}(?:begin|end)(?: of)? (?:system|user|prompt)(?: (?:prompt|message|input|instructions?))?\s{0,3}-{2,}|(?<!=)={2,}+\s{0,3}(?:begin|end|new)(?: of)? (?:system|user|prompt|session|instructions?)[ \w]{0,20}={2,}|\bend of (?:user|system) (?:input|prompt|message)\b",
    ),
    Rule("role", "", "assistant:¦ai:",
        r"^\s{0,8}(?:assistant|ai): (?:sure|of course|certainly|understood|yes|okay|ok|absolutely)\b",
    ),
    Rule("hidden", "", "\x1b]¦\x1b[",
        r"\x1b(?:\]|\[(?:\d{1,3};){0,5}8m)",
    ),
    Rule("tool-call", "", 'tool¦function¦invoke¦arguments¦recipient_name¦"action"¦action input¦<function¦execute_command¦antml',
        r"[{,]\s{0,8}\"(?:tool_calls?|function_call|tool_use|tool_code|recipient_name|tool_uses)\"\s{0,4}:|\"type\"\s{0,4}:\s{0,4}\"(?:tool_use|tool_call|function_call|tool_result)\"|\{\s{0,8}\"(?:tool|tool_name|function|action|name)\"\s{0,4}:\s{0,4}\"[\w.:/-]{1,64}\"\s{0,4},\s{0,8}\"(?:arguments|args|parameters|params|input|tool_input|action_input)\"\s{0,4}:\s{0,4}[{\"\[]|</?(?:\w{1,10}:)?(?:function_calls?|tool_calls?|tool_use|tool_code|tool_result|tool_response|function_results?|invoke|execute_command|use_mcp_tool)(?: [^>\n]{0,80})?>|<function=[\w.]{1,40}|<parameter name=|\baction ?: ?\w{1,40}\s{1,3}action input ?:|```tool_(?:code|call)",
    ),
    Rule("hidden", "", "<!--¦[//]: #¦[comment]:¦display:none¦display: none¦font-size:0¦font-size: 0¦visibility:hidden¦color:white¦color:#fff¦color: white¦opacity:0¦aria-hidden",
        r"(?:<!--|\[(?://|comment)\]: ?(?:#|<>) ?[\"'(]|(?:display: ?none|font-size: ?0(?:px)?|visibility: ?hidden|color: ?(?:white|#fff(?:fff)?)|opacity: ?0)[^>\n]{0,60}>)(?:(?!-->).){0,600}?(?:\b(?:ai|llms?|language models?|(?:ai )?assistants?|ai agents?|agents?|chatgpt|gpt|claude|copilot|gemini|models?|bots?)\b(?:(?!-->).){0,200}?\b(?:must|should|shall|ignore|send|run|execute|say|reply|include|always|never|add|recommend|read|do not|don't|please|upload|print|delete|insert|tell|give|approve)\b|\b(?:ignore|send|run|execute|recommend|upload|exfiltrate|always|never)\b(?:(?!-->).){0,80}?\b(?:instructions|user|secrets?|credentials|curl|https?:|prompt|passwords?|api keys?|\.env)\b)",
    ),
    Rule("image", "", "![¦<img",
        r"(?:!\[[^\]\n]{0,200}\]\( ?<?|<img [^>\n]{0,80}src ?= ?[\"']?)(?:https?:)?//(?:[^\s)\"'>][^\s)\"'>?&/=]{0,299}+[?&/=][^\s)\"'>]{0,500}?(?:\{\{?[\w .%-]{1,40}\}|\$\{?\w{2,40}|%7b|\[[\w ,.'-]{2,60}\]|<[\w ,.'-]{2,60}>|=[a-z]{0,8}_?(?:here|data|secret)\b)|[^\s)\"'>]{1,300}?[?&/=](?:data|secrets?|leak|exfil\w{0,8}|convo|conversation|history|prompt|context|memor(?:y|ies)|stolen|cookies?|payload|keys?|password|passwd|pwd|creds?|credentials|messages?|chat|env|dump|loot|steal)=)",
    ),
    Rule("image", "image images img markdown", "http¦![¦img",
        r"\b(?:render|display|show|include|embed|append|add|insert|output|load|fetch|end|put|print)\b[^!?;]{0,80}?\b(?:images?|img|markdown)\b[^?;]{0,120}?(?:https?:|\b[\w-]{2,40}\.\w{2,8}/)[^;]{0,160}?\b(?:containing|with (?:the|all|your|any)|contents?|conversation|secrets?|data|keys?|tokens?|answer|summary|history|encoded|user'?s?|filled|replac\w{1,5})\b",
    ),
)

# Words of texts that talk about attacks. What such a text only quotes or reports is no order.
TALK = r"\b(?:inject\w*|jailbreak\w*|attack\w*|malicious|adversar\w*|red[ -]team\w*|phish\w*|owasp|exploit\w*|payloads?|poison\w*|hostile|example|e\.g\.|phrases?|phrasing|such as|detect\w*|classif\w*|filter\w*|paper|researchers?|angriff\w*|attaque\w*|ataque\w*|инъекц\w*|атак\w*|注入|攻击|攻撃)"
