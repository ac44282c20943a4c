"""The kinds of secrets, from the formats that their makers publish: a literal that each has, and
what stands around it.

A rule is tried only where one of its literals stands, and every repetition has an upper bound. So
the time for a text grows with its length, whatever the text is.
"""

from collections.abc import Callable
from re import Match
from typing import NamedTuple

from memories.guard import values

Span = tuple[int, int]


class Rule(NamedTuple):
    """What a secret of one kind looks like.

    Attributes:
        kind: Its name, as in `[redacted:kind]`.
        anchors: Literals in lower case; the pattern begins at one of them, or `before` characters
            earlier at most. A rule without any is tried everywhere.
        pattern: A regular expression; the secret is its group `s`.
        locate: Returns where the secret is in what matches; None if it is no secret.
        before: How many characters before the anchor it may begin.
        line: What matches is searched as a whole, so nothing in it is tried again.
    """

    kind: str
    anchors: tuple[str, ...]
    pattern: str
    locate: Callable[[Match[str]], Span | None]
    before: int = 0
    line: bool = False


def _varied(found: Match[str]) -> Span | None:
    return found.span("s") if values.varied(found["s"]) else None


# What may stand before a token: no letter or digit, but the end of an escape (\n, %3D, \u003d) or
# of a colour code.
_A = (
    r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})|(?<=[0-9;]m))"
)
_Z = r"(?![A-Za-z0-9_])"
_H = r"[0-9a-f]"
_B = r"[A-Za-z0-9]"
_W = r"[A-Za-z0-9_-]"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

# kind | literals that it begins with | the pattern of what follows the literal
_PREFIXED = rf"""
aws_access_key | AKIA ASIA ABIA ACCA | [A-Z2-7]{{16}}{_Z}
aws_bedrock_key | ABSK bedrock-api-key- | [A-Za-z0-9+/]{{80,2000}}={{0,2}}
aws_mws_token | amzn.mws. | {_UUID}
google_api_key | AIza | {_W}{{35}}
google_api_key | AQ.Ab | {_W}{{40,200}}
google_oauth_secret | GOCSPX- | {_W}{{28}}
google_oauth_token | ya29. 1//0 | [A-Za-z0-9_.-]{{30,2000}}
digitalocean_token | dop_v1_ doo_v1_ dor_v1_ | {_H}{{64}}
alibaba_access_key | LTAI | {_B}{{12,24}}{_Z}
tencent_secret_id | AKID | {_B}{{32}}{_Z}
yandex_key | AQVN | {_W}{{35,38}}
yandex_token | t1.9 y0_ | {_W}{{50,400}}(?:\.{_W}{{80,90}})?
scaleway_key | SCW | [A-Z0-9]{{17}}{_Z}
cloudflare_ca_key | v1.0- | {_H}{{24}}-{_H}{{146}}
cloudflare_token | cfut_ cfat_ cfk_ | {_W}{{40,80}}
heroku_key | HRKU- | {_W}{{36,80}}
fly_token | fo1_ fm1a_ fm1r_ fm2_ | [A-Za-z0-9_+/=,-]{{40,4000}}
render_key | rnd_ | {_B}{{28,40}}
vercel_token | vcp_ vci_ vca_ vcr_ vck_ | {_B}{{24,80}}
netlify_token | nfp_ nfc_ nfo_ | {_W}{{36,60}}
supabase_key | sbp_ sbp_oauth_ sb_secret_ | {_W}{{30,60}}
planetscale_token | pscale_tkn_ pscale_oauth_ pscale_pw_ | [A-Za-z0-9=_.-]{{32,64}}
neon_key | napi_ npg_ | {_B}{{12,80}}
mongodb_atlas_key | mdb_sa_sk_ | {_W}{{40}}
databricks_token | dapi dose dkea | {_H}{{32}}(?:-\d)?{_Z}
aiven_token | AVNS_ aivenv1 | [A-Za-z0-9_+/=-]{{19,400}}
pulumi_token | pul- | {_H}{{40}}
vault_token | hvs. hvb. hvr. | {_W}{{24,400}}
doppler_token | dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit. | [A-Za-z0-9_.-]{{40,80}}
onepassword_token | ops_eyJ | {_W}{{100,4000}}={{0,2}}
infisical_token | st. | {_H}{{24}}\.{_H}{{32}}\.{_H}{{32}}
age_key | AGE-SECRET-KEY-1 | [A-Za-z0-9]{{58}}
age_key | AGE-PLUGIN- | [A-Z0-9]{{1,30}}-1[A-Z0-9]{{50,200}}
tailscale_key | tskey- | [a-z]{{3,12}}-{_B}{{8,40}}-{_B}{{16,80}}
ngrok_token | cr_ | {_B}{{27}}{_B}{{0,20}}{_Z}
github_token | ghp_ gho_ ghu_ ghs_ ghr_ | {_B}{{36,255}}
github_token | ghs_ | [A-Za-z0-9_.-]{{60,600}}
github_token | github_pat_ | [A-Za-z0-9_]{{50,255}}
gitlab_token | glpat- glrt- gldt- glptt- glcbt- glsoat- glft- glimt- glagent- gloas- glrtr- glffct- glwt- GR1348941 \
| [A-Za-z0-9_.-]{{20,300}}
bitbucket_token | ATBB ATCTT3xFfGN0 | [A-Za-z0-9_=.-]{{24,400}}
atlassian_token | ATATT3 ATCTT3 ATOA | [A-Za-z0-9_=.-]{{60,400}}
sourcegraph_token | sgp_ | (?:local_|[0-9a-f]{{16}}_)?{_H}{{40}}
slack_token | xoxb- xoxp- xoxa- xoxo- xoxr- xoxs- xoxc- xoxd- xoxe- xoxe. | [A-Za-z0-9%+/=._-]{{10,400}}
slack_token | xapp- xwfp- | [A-Za-z0-9-]{{20,400}}
slack_webhook | hooks.slack.com/services/ hooks.slack.com/workflows/ hooks.slack.com/triggers/ \
| [A-Za-z0-9/_-]{{20,200}}
discord_webhook | discord.com/api/webhooks/ discordapp.com/api/webhooks/ | \d{{15,22}}/{_W}{{40,100}}
teams_webhook | webhook.office.com/ | [A-Za-z0-9/@_.-]{{40,300}}
google_chat_webhook | chat.googleapis.com/v1/spaces/ \
| {_W}{{5,40}}/messages\?key={_W}{{20,60}}&token=[A-Za-z0-9_%-]{{20,80}}
zapier_webhook | hooks.zapier.com/hooks/catch/ | [A-Za-z0-9/]{{12,60}}
twitch_token | oauth: | [a-z0-9]{{30}}{_Z}
facebook_token | EAAC EAAG EAAE EAAD EAAB | {_B}{{60,400}}
twitter_bearer | AAAAAAAAAAAAAAAAAAAAA | [A-Za-z0-9%]{{60,120}}
stripe_key | sk_live_ sk_test_ rk_live_ rk_test_ sk_org_ sk_prod_ | [A-Za-z0-9_]{{10,250}}
stripe_webhook_secret | whsec_ | [A-Za-z0-9+/]{{24,100}}={{0,2}}
square_token | sq0atp- sq0csp- sq0idp- EAAAE EAAAL | {_W}{{22,64}}
paypal_token | access_token$ | (?:production|sandbox)\$[a-z0-9]{{16}}\${_H}{{32}}
razorpay_key | rzp_live_ rzp_test_ | {_B}{{14,40}}
plaid_token | access-sandbox- access-development- access-production- | {_UUID}
mollie_key | live_ test_ | {_B}{{30,44}}{_Z}
flutterwave_key | FLWSECK- FLWSECK_TEST- FLWPUBK_TEST- | [0-9A-Za-z]{{12,40}}(?:-X)?
shopify_token | shpat_ shpss_ shpca_ shppa_ shptka_ | [0-9a-fA-F]{{32}}
paddle_key | pdl_ | (?:live|sdbx)_[A-Za-z0-9_]{{24,100}}
adyen_key | AQE | [a-z]{{0,2}}h{_B}{{5,20}}[A-Za-z0-9+/=._-]{{40,300}}
easypost_key | EZAK EZTK | {_B}{{54}}
duffel_token | duffel_live_ duffel_test_ | {_W}{{43}}
shippo_token | shippo_live_ shippo_test_ | {_H}{{40}}
anthropic_key | sk-ant- | {_W}{{20,300}}
openai_key | sk-proj- sk-svcacct- sk-admin- sk-none- | {_W}{{20,300}}
openrouter_key | sk-or- | {_W}{{20,120}}
langfuse_key | sk-lf- | {_W}{{20,80}}
secret_key | sk-cp- sk-kimi- sk-litellm- sk-ws- | {_W}{{20,200}}
openai_key | sk- | {_B}{{20}}T3BlbkFJ{_B}{{20}}
secret_key | sk- | {_B}{{32,64}}{_Z}
elevenlabs_key | sk_ | {_H}{{48}}{_Z}
secret_key | sk_ | (?:{_B}{{2,12}}_)?{_B}{{24,100}}{_Z}
groq_key | gsk_ | {_B}{{40,80}}
xai_key | xai- | {_B}{{60,100}}
perplexity_key | pplx- | {_B}{{32,80}}
huggingface_token | hf_ api_org_ | {_B}{{30,60}}{_Z}
replicate_token | r8_ | {_B}{{32,60}}
together_key | tgp_v1_ | {_W}{{30,80}}
fireworks_key | fw_ | {_B}{{20,60}}{_Z}
cerebras_key | csk- | {_B}{{40,80}}
nvidia_key | nvapi- | {_W}{{40,100}}
langsmith_key | lsv2_pt_ lsv2_sk_ ls__ | [0-9a-f_]{{32,60}}
pinecone_key | pcsk_ | [A-Za-z0-9_]{{40,120}}
tavily_key | tvly- | {_W}{{20,80}}
firecrawl_key | fc- | {_H}{{32}}{_Z}
jina_key | jina_ | {_W}{{40,100}}
voyage_key | pa- al- | {_W}{{43}}{_Z}
wandb_key | wandb_v1_ | {_W}{{40,120}}
cursor_key | crsr_ | {_H}{{60,70}}
cohere_key | co_ | {_B}{{40}}{_Z}
apify_token | apify_api_ | {_B}{{30,50}}
e2b_key | e2b_ | {_H}{{40}}
kaggle_token | KGAT_ | {_H}{{32}}
runpod_key | rpa_ | [A-Z0-9]{{40,60}}
anyscale_key | esecret_ | {_B}{{26,60}}
npm_token | npm_ | {_B}{{36}}
pypi_token | pypi-Ag | [A-Za-z0-9_-]{{50,1000}}
rubygems_key | rubygems_ | {_H}{{48}}
crates_token | cio | {_B}{{32}}{_Z}
nuget_key | oy2 | [a-z0-9]{{43}}{_Z}
docker_token | dckr_pat_ dckr_oat_ | {_W}{{24,60}}
jfrog_key | AKCp | {_B}{{60,80}}
jfrog_token | cmVmd | {_B}{{50,80}}
clojars_token | CLOJARS_ | [a-z0-9]{{60}}
packagist_token | packagist_ | [a-z]{{3}}_[A-Za-z0-9_]{{40,100}}
buildkite_token | bkua_ bkct_ bkaj_ | {_B}{{30,60}}
circleci_token | CCIPAT_ CCIPRJ_ | {_B}{{16,30}}_{_H}{{40}}
sonar_token | sqp_ squ_ sqa_ | {_H}{{40}}
snyk_token | snyk_ | [A-Za-z0-9_.-]{{36,200}}
octopus_key | API- | [A-Z0-9]{{25,32}}{_Z}
launchdarkly_key | sdk- API- mob- | {_UUID}
prefect_key | pnu_ pnb_ | {_B}{{36}}
postman_key | PMAK- | {_H}{{24}}-{_H}{{34}}
figma_token | figd_ figu_ figo_ figoh_ | {_W}{{36,80}}
notion_token | ntn_ | {_B}{{40,60}}
notion_token | secret_ | {_B}{{43}}{_Z}
airtable_token | pat | {_B}{{14}}\.{_H}{{64}}
linear_key | lin_api_ lin_oauth_ lin_wh_ | {_B}{{32,80}}
clickup_token | pk_ | \d{{5,12}}_[A-Z0-9]{{32}}
typeform_token | tfp_ | {_W}{{36,80}}
hubspot_token | pat-na pat-eu pat-ap | \d-{_UUID}
contentful_token | CFPAT- | {_W}{{43}}
frameio_token | fio-u- | {_W}{{60,70}}
dropbox_token | sl.u. sl.b | {_W}{{60,2000}}
readme_key | rdme_ | [a-z0-9]{{60,80}}
mailgun_key | key- | {_H}{{32}}{_Z}
sendgrid_key | SG. | {_W}{{16,32}}\.{_W}{{16,64}}
brevo_key | xkeysib- xsmtpsib- | {_H}{{64}}-{_B}{{12,24}}
resend_key | re_ | {_B}{{8}}_{_B}{{20,40}}
twilio_key | SK | {_H}{{32}}{_Z}
mapbox_token | sk.eyJ tk.eyJ | {_W}{{20,400}}\.{_W}{{16,100}}
dynatrace_token | dt0c01. dt0s01. dt0s16. | [A-Z0-9]{{8,24}}\.[A-Z0-9]{{40,64}}
grafana_token | glc_ | [A-Za-z0-9+/]{{32,400}}={{0,3}}
grafana_token | glsa_ | {_B}{{32}}_{_H}{{8}}
grafana_key | eyJrIjoi | [A-Za-z0-9+/]{{40,400}}={{0,3}}
newrelic_key | NRAK- NRII- NRJS- NRRA- NRSP- NRIQ- NRAA- NRBR- | {_W}{{19,42}}
sentry_token | sntrys_ sntryu_ sntrya_ sntryi_ | [A-Za-z0-9+/=_-]{{40,600}}
honeycomb_key | hcaik_ hcbik_ hcxik_ hcalk_ hcxlk_ hcamk_ | {_B}{{30,80}}
axiom_token | xaat- xapt- | {_UUID}
datadog_key | ddapp_ ddapi_ ddp_ | {_B}{{30,60}}
honeybadger_key | hbp_ | {_B}{{30,60}}
posthog_key | phx_ phs_ | {_B}{{36,60}}
statsig_key | secret- | {_B}{{30,60}}{_Z}
stytch_secret | secret-live- secret-test- | {_W}{{28,60}}
inngest_key | signkey-prod- signkey-test- signkey-branch- | {_H}{{32,64}}
algolia_key | alg_ | {_B}{{30,60}}
terraform_token | atlasv1. | {_W}{{60,70}}
openshift_token | sha256~ | {_W}{{40,44}}
rancher_token | token- | [a-z0-9]{{5}}:[a-z0-9]{{54}}
telegram_token | :AA | {_W}{{33}}{_Z}
dbt_token | dbtc_ dbtu_ dbts_ | {_B}{{24,80}}
adafruit_key | aio_ | {_B}{{28}}{_Z}
lichess_token | lip_ lio_ | {_B}{{20,24}}{_Z}
wakatime_key | waka_ waka_sec_ waka_tok_ | (?:{_UUID}|{_B}{{40,90}})
maxmind_key | _mmk | {_Z}
deno_token | ddw_ | {_B}{{30,50}}
scalingo_token | tk-us- | {_W}{{48}}
harness_token | pat. sat. | {_W}{{22}}\.{_H}{{24}}\.{_B}{{20}}
bitcoin_key | xprv yprv zprv tprv | [1-9A-HJ-NP-Za-km-z]{{100,112}}
val_town_token | vtwn_ | {_B}{{20,60}}
tinybird_token | p.eyJ | {_W}{{20,400}}\.{_W}{{20,200}}
salesforce_token | 00D | {_B}{{12,15}}![A-Za-z0-9_.]{{80,200}}
messagebird_key | live_ | [a-z0-9]{{25}}{_Z}
zuplo_key | zpka_ | [A-Za-z0-9_]{{32,60}}
unkey_key | unkey_ | {_B}{{16,40}}
uploadthing_key | sk_live_ | {_H}{{64}}
memories_token | mem_ | {_W}{{32,80}}
"""

# Kinds whose literal stands after their beginning: how many characters after it, and what stands
# there.
_BEFORE = {
    "telegram_token": (12, rf"{_A}\d{{8,12}}:AA"),
    "terraform_token": (16, rf"{_A}{_B}{{14}}\.atlasv1\."),
    "maxmind_key": (40, rf"{_A}{_B}{{6}}_{_B}{{29}}_mmk"),
}


def _prefixed() -> tuple[Rule, ...]:
    """Return the rules of tokens that begin with a literal of their maker."""
    rules = []
    for line in _PREFIXED.replace("\\\n", "").strip().splitlines():
        kind, literals, rest = (part.strip() for part in line.split(" | ", 2))
        before, head = _BEFORE.get(
            kind, (0, f"{_A}(?:{'|'.join(map(_escaped, literals.split()))})")
        )
        pattern = f"(?P<s>{head}{rest})"
        rules.append(Rule(kind, tuple(literals.lower().split()), pattern, _varied, before))
    return tuple(rules)


def _escaped(literal: str) -> str:
    return "".join(f"\\{sign}" if sign in ".$/?" else sign for sign in literal)


TOKENS = _prefixed()
