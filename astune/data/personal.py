"""Find personal data in texts by its pattern and put `<kind-number>` in its place.

Addresses of mail, machines and houses, bank accounts, cards, phones, ids of people in some countries, keys and tokens,
and where a text introduces them names, dates of birth, passports, other ids and accounts. Letters of another width, and
signs that nobody sees, hide nothing. `tests/data/test_personal.py` measures how many are found. What is not found:
`NOT_FOUND`.

    astune.online.redact=astune.data.personal:mask_message     what a service writes, too
"""

from __future__ import annotations

import ipaddress
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from astune.errors import MissingDependency

NOT_FOUND = (
    "names that no text introduces (`my name is`) and the trace does not give as its user's, dates of birth and "
    "passports that no text introduces, and postal addresses, ids and kinds that are not in astune/data/personal.py"
)
"""What nobody may rely on being masked."""
PHONE_REGIONS = ("US", "GB", "DE", "FR", "CN", "IN", "ES", "IT", "BR", "JP")
"""Countries whose phone numbers are found without `+` and the country's code."""
PERSON_IDS = {
    "us.ssn": r"\d{3}-\d{2}-\d{4}",
    "cn.ric": r"\d{17}[\dXx]",
    "in_.aadhaar": r"[2-9]\d{3} ?\d{4} ?\d{4}",
    "in_.pan": r"[A-Z]{5}\d{4}[A-Z]",
    "br.cpf": r"\d{3}\.?\d{3}\.?\d{3}-?\d{2}",
    "de.idnr": r"\d{2} ?\d{3} ?\d{3} ?\d{3}",
    "fr.nir": r"[12] ?\d{2} ?\d{2} ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}",
    "es.dni": r"\d{8}-?[A-Z]",
    "es.nie": r"[XYZ]-?\d{7}-?[A-Z]",
    "it.codicefiscale": r"[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]",
    "ch.ssn": r"756\.?\d{4}\.?\d{4}\.?\d{2}",
    "pl.pesel": r"\d{11}",
    "kr.rrn": r"\d{6}-\d{7}",
    "se.personnummer": r"(?:\d{2})?\d{6}[-+]\d{4}",
}
"""Ids with a check sum, by their module in python-stdnum, as people write them."""
_UK_INSURANCE = r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]"
_OLD_CHINESE_ID = r"[1-9]\d{7}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}"
_IN_MAIL = r"A-Za-z0-9_\u00c0-\u024f\u0370-\u1fff.+%-"
_MAIL = re.compile(
    rf"(?:(?<![{_IN_MAIL}])[{_IN_MAIL}]{{1,64}}|\"[^\"\n]{{1,64}}\"(?=@))"
    r"(?:@|%40| ?[\[(]at[\])] ?| at (?=[\w.-]{1,63} dot ))"
    r"(?:[\w-]{1,63}(?:\.| ?[\[(]dot[\])] ?| dot ))+[^\W\d_]{2,}",
    re.IGNORECASE,
)
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}(?!\w)", re.IGNORECASE | re.ASCII)
_CARD = re.compile(r"(?<![\d.-])(?:3[0-9]|4\d|5[0-8]|6\d|2[2-7])(?:[ -]?\d){11,17}(?![\d]|[.,]\d)")
_ADDRESS = re.compile(
    r"(?<![\w.])(?<![0-9A-Fa-f:]:)(?:(?:::ffff:)?\d{1,3}(?:\.\d{1,3}){3}(?=:\d|(?![\w:]|\.\d))"
    r"|(?:[0-9A-Fa-f]{1,4}:|::)(?:[0-9A-Fa-f]{0,4}:){0,6}[0-9A-Fa-f]{0,4}(?![\w:]|\.\d))",
    re.ASCII,
)
_MACHINE = re.compile(r"(?<!\w)(?<![0-9A-Fa-f][:-])[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])")
_FILLER = r"(?i:\s|[:#=,.]|number|no\b|nr\b|n[°º]|is|ist|est|es|der\b|on\b|id\b|号码?|是|为){0,6}"
_ID = re.compile(
    r"(?i:passport|reisepass|ausweis|passeport|pasaporte|driver'?s? licen[cs]e|social security|\bssn\b|tax id"
    r"|national id|identity card|account (?:number|no)|kontonummer|wechat|whatsapp|telegram|\bqq"
    rf"|护照|身份证|驾驶证|微信|账号|帐号|卡号){_FILLER}"
    r"(?P<it>(?=[A-Za-z_]{0,8}(?:\d[A-Za-z_ -]{0,2}){4})\w(?:(?<=[A-Z\d])[ -](?=[A-Z\d])|[A-Za-z\d_]){4,24})"
    r"|(?<![A-Z<])[PIAC][A-Z<][A-Z]{3}[A-Z<]{20,}(?:\s+[A-Z0-9<]{20,})?"
)
_BIRTH = re.compile(
    r"(?i:\bborn(?: on)?|date of birth|\bd\.?o\.?b\b|birthday|geboren(?: am)?|geburtsdatum|geburtstag|\bnée?(?: le)?"
    rf"|date de naissance|nacid[oa](?: el)?|fecha de nacimiento|出生日期|出生于|生日){_FILLER}"
    r"(?P<it>(?:19|20)\d\d[./年-]\d{1,2}[./月-]\d{1,2}日?|\d{1,2}(?:[./-]|\. )\d{1,2}(?:[./-]|\. )(?:19|20)?\d\d\b"
    r"|(?:[A-Z][a-z]+ \d{1,2},?|\d{1,2}(?:st|nd|rd|th|\.)? (?:of )?[^\W\d]+) (?:19|20)\d\d\b)"
)
_HOUSE = re.compile(
    r"\b\d{1,5}[A-Za-z]? (?:[A-Z][\w'-]*\.? ){1,3}(?:Street|Road|Avenue|Lane|Drive|Boulevard|Court|Square|Parkway"
    r"|(?:St|Rd|Ave|Ln|Dr|Blvd|Ct|Sq|Pkwy)\b\.?)(?:,? (?:Apt|Suite|Unit)\.? \w+)?"
    r"(?:(?:, [A-Z][a-z]+(?: [A-Z][a-z]+)*)?,? (?:[A-Z]{2} \d{5}|[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2})\b)?"
    r"|\b[A-ZÄÖÜ][\wäöüß-]*(?:stra(?:ß|ss)e|str\.|weg|platz|gasse| Stra(?:ß|ss)e| Allee| Platz) \d{1,4} ?[a-z]?\b"
    r"(?:, \d{5} [A-ZÄÖÜ][\wäöüß]+)?"
    r"|\b\d{1,4}(?: bis| ter)?,? (?:rue|avenue|boulevard|place|chemin|impasse|quai) [\w' -]{2,40}, \d{5} [A-ZÉ][\w-]+"
    r"|\bP\.? ?O\.? Box \d{1,6}\b"
    r"|\b(?:Calle|Avenida|Plaza|Paseo|Via|Viale|Piazza|Corso|Rua|Praça) [A-ZÁ][^\W\d]+(?: [^\W\d]+){0,4},?"
    r" (?:n[º°.] ?)?\d{1,4}\b(?:, \d{5} [A-ZÁ]\w+)?"
    r"|(?:[\u4e00-\u9fff]{2,4}[省市区县镇]){0,4}[\u4e00-\u9fff]{1,6}(?:路|街|大道|巷|弄|胡同)(?:\d{1,5}弄)?\d{1,5}号楼?"
    r"(?:[\dA-Za-z-]{1,5}(?:号楼|栋|楼|单元|室|座)){0,3}"
)
_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9_-])(?:(?:sk|pk|rk)[-_][\w-]{16,}|gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{16,}|hf_\w{24,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|LTAI\w{12,}|xox[abprs]-[\w-]{10,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|(?<=hooks\.slack\.com/services/)[\w/]{20,}"
    r"|(?i:\bbearer |\bauthorization: basic )\s*[\w.~+/-]{16,}=*"
    r"|(?i:(?:api[_ -]?key|access[_ -]?key|secret|token|password|passwort|mot de passe|contraseña|pwd)\b"
    r"(?:\s+(?:is|ist|est|es))?\s*[:=]?\s*[\"']?)(?P<it>(?=[^\s\"']*\d)[^\s\"',;]{6,})"
    r"|(?:密码|口令)(?:是|为)?[:=\uff1a]?\s*(?P<them>[\w!@#$%^&*.-]{6,})"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    re.DOTALL,
)
_NAME = re.compile(
    r"(?i:\b(?:my (?:full )?name(?: is|'s)|i am called|ich hei(?:ß|ss)e|mein name ist|je m'appelle|mon nom est"
    r"|me llamo|mi nombre es|mi chiamo|meu nome é)\s+)"
    r"(?P<it>[^\W\d_]+(?:[-'.\u2019]?[^\W\d_]+)*(?:\s+[A-ZÀ-Þ][^\W\d_]*(?:[-'.\u2019][^\W\d_]+)*){0,2})"
    r"|(?:我叫|我的名字(?:是|叫)|姓名[:是])(?P<them>[\u4e00-\u9fff]{2,4}?)(?=[\s,.!\uff0c\u3002\uff01\u3001]|$)"
)
_HAN = re.compile(r"[\u3400-\u9fff]{2}")  # names between which and other words is no space
_SEVEN_DIGITS = re.compile(r"(?:\d[ ().\u00a0/-]{0,3}){7}")


def find_personal(text: str) -> list[tuple[str, int, int]]:
    """The kind, start and end of all that is found; places may overlap, of which the earlier kind counts."""
    if text.isascii():
        return [*_find(text)]
    seen = [(_narrow(sign), at) for at, sign in enumerate(text) if unicodedata.category(sign) != "Cf"]
    found = _find("".join(sign for sign, _ in seen))
    return [(kind, seen[start][1], seen[end - 1][1] + 1) for kind, start, end in found if start < end]


def _narrow(sign: str) -> str:
    """The same letter or digit of usual width."""
    narrow = unicodedata.normalize("NFKC", sign)
    return narrow if len(narrow) == 1 else sign


def _find(text: str) -> Iterator[tuple[str, int, int]]:
    yield from _matches("key", _KEY, text)
    yield from _matches("email", _MAIL, text)
    yield from _matches("name", _NAME, text)
    if not any(letter.isdigit() for letter in text):
        return
    for kind, pattern in (("address", _HOUSE), ("birth", _BIRTH), ("id", _ID), ("machine", _MACHINE)):
        yield from _matches(kind, pattern, text)
    if sum(letter.isdigit() for letter in text) < 4:
        return
    for match in _ADDRESS.finditer(text):
        if _is_address(match[0]):
            yield "ip", *match.span()
    for match in _IBAN.finditer(text):
        for end in range(match.end(), match.start() + 14, -1):  # words in capitals may stand behind it
            if not text[end - 1].isspace() and _load("stdnum.iban").is_valid(text[match.start() : end], False):
                yield "iban", match.start(), end
                break
    for match in _CARD.finditer(text):
        if _checks("luhn")(re.sub("[ -]", "", match[0])):
            yield "card", *match.span()
    for module, id_pattern in PERSON_IDS.items():
        for match in _whole(id_pattern).finditer(text):
            if _checks(module)(match[0]):
                yield "id", *match.span()
    for unchecked in (_UK_INSURANCE, _OLD_CHINESE_ID):
        yield from _matches("id", _whole(unchecked), text)
    yield from _find_phones(text)


class Masker:
    """Masks what belongs together: what is equal has the same number. `names` are of people who are known to occur.
    `counts` has how many there were of each kind."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        words = sorted({name for name in names if len(name) > 2 or _HAN.search(name)}, key=len, reverse=True)
        whole = (re.escape(word) if _HAN.search(word) else rf"(?<!\w){re.escape(word)}(?!\w)" for word in words)
        self._names = re.compile("|".join(whole)) if words else None
        self._numbers: dict[tuple[str, str], int] = {}
        self._masked: dict[str, str] = {}
        """Texts that were masked before: a conversation repeats its history."""

    def text(self, text: str) -> str:
        """The text with all that is found replaced.

        >>> Masker().text("Write to ana@x.org or ana@x.org, not to bo@x.org.")
        'Write to <email-1> or <email-1>, not to <email-2>.'
        """
        if text not in self._masked:
            self._masked[text] = self._mask(_unescape(text))
        return self._masked[text]

    def _mask(self, text: str) -> str:
        spans = [*find_personal(text), *(_matches("name", self._names, text) if self._names else ())]
        parts, done = [], 0
        for kind, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
            if start < done:
                done = max(done, end)  # two that overlap go together
                continue
            parts += [text[done:start], f"<{kind}-{self._number(kind, text[start:end])}>"]
            done = end
        return "".join([*parts, text[done:]])

    def apply(self, value: Any) -> Any:
        """The same of all texts in lists and mappings; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.apply(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.apply(item) for item in value)
        return value

    def _number(self, kind: str, found: str) -> int:
        self.counts[kind] += 1
        last = sum(each == kind for each, _ in self._numbers)
        return self._numbers.setdefault((kind, re.sub(r"[\s().-]", "", found).casefold()), last + 1)


def _unescape(text: str) -> str:
    """JSON, as the arguments of calls are, with its letters as they are and not as `\\u` and a number."""
    if "\\u" not in text or text[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def mask_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's shape without what is found: for `astune.online.redact`."""
    masked: dict[str, Any] = Masker().apply(message)
    return masked


def _matches(kind: str, pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, int, int]]:
    """The part of each match that is to go: a named group, else all of it."""
    for match in pattern.finditer(text):
        named = next((name for name, found in match.groupdict().items() if found), 0)
        yield kind, *match.span(named)


def _find_phones(text: str) -> Iterator[tuple[str, int, int]]:
    if not _SEVEN_DIGITS.search(text):
        return
    phones = _load("phonenumbers")
    for region in PHONE_REGIONS:
        found = phones.PhoneNumberMatcher(text, region, leniency=phones.Leniency.STRICT_GROUPING)
        yield from (("phone", match.start, match.end) for match in found)


def _is_address(text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified) and (found.version == 4 or len(text) > 6)


@cache
def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){pattern}(?![\w]|[.,-]\d)", re.ASCII)


@cache
def _checks(module: str) -> Callable[[str], bool]:
    check: Callable[[str], bool] = _load(f"stdnum.{module}").is_valid
    return check


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependency(f"personal data is found with {error.name!r}: pip install 'astune[data]'") from error
