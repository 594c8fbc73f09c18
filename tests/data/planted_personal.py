"""Personal data planted in what people write to an agent, and texts of the same look that have none."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import phonenumbers
from phonenumbers import PhoneNumberFormat
from stdnum import luhn
from stdnum.cn import ric
from stdnum.es import dni
from stdnum.in_ import aadhaar
from stdnum.it import codicefiscale

from astune.data.personal import PHONE_REGIONS, find_personal

AROUND = (
    "Please use {} for this.",
    "{}",
    "I gave you that already ({}), why do you ask again?",
    "Can you check my account? It is {}, thanks",
    "Order 4711 of 12.11.2026 over 1,299.00 EUR: {}. What about it?",
    "Mein Anschluss: {}; bitte prüfen!",
    "请帮我查一下:{} 谢谢",
    "line one\n{}\nline three",
)
OTHER_REGIONS = ("AU", "SE", "PL", "NL", "KR")
NAMES = ("Ana Bell", "Miguel Álvarez", "Sørensen", "Jean-Luc Picard", "Nguyễn Văn An")
SINGLE_IDS = (
    *("36574261809", "390.533.447-05", "756.9217.0769.85", "44051401359", "971013-9019902", "880320-0016"),
    *("X-2482300W", "ACUPA7085R", "AB 12 34 56 C"),
)
"""Of Germany, Brazil, Switzerland, Poland, Korea, Sweden, Spain's foreigners, India's taxes and Britain."""
INTRODUCED = (
    "My name is {}.",
    "Hi, my name's {} and I need help",
    "ich heiße {}, hallo",
    "Je m'appelle {}.",
    "Me llamo {}",
)
BARE = ("{} will pick it up.", "Send it to {} please.", "Is {} in the office?", "Regards, {}")
CLEAN = (
    "What is 12345678 times 87654321?",
    "A ship carries 1234567890123456 grains in 48 sacks of 25000.",
    "Solve 3x + 7 = 22 and then 10/4 - 0.125.",
    "The meeting is on 2026-11-27 at 10:30:15, room 4.12.",
    "Call f(a, b) with std::vector<int> and retry after 30 s.",
    "Look at the end dot by dot; at 5 dot 3 it stops. Basic responsibilities of a manager: 4.",
    "The token count is 4096 tokens, the password is wrong.",
    "ISBN 978-3-16-148410-0 costs $1,234.56, article 40-112-7.",
    "In 1999 there were 31,415,926 people; by 2020 27,182,818.",
    "pi is 3.14159265358979 and e is 2.718281828459045.",
    "GET /v1/items/42?page=7 returned 404 in 0.25 s.",
    "Matrix [[1, 22, 333], [4444, 55555, 666666]] has which rank?",
    "commit 3f2a9c1 fixes #8125; see lines 1200-1240.",
    "A passport costs 9200 yen, an account number has 12 digits, and 12 clerks work on Main Street.",
    "He was born in 1999, walked 12 Miles, and 3 Way stations later 40 Road workers met him at 12:30:45.",
    "Mozart was born on 27 January 1756 in Salzburg, geboren am 27.1.1756.",
    "小明从家到学校走了500米,沿着人民路走了3分钟,花了20元。",
    "还剩多少个苹果? 一共 120 个, 吃了 45 个。",
    "UPDATE t SET n = 100000 WHERE id = 20261127;",
)


def planted(seed: int, each: int = 40) -> Iterator[tuple[str, str, str]]:
    """Texts with the kind and the value that stands in each."""
    chance = random.Random(seed)
    for kind, make in MAKE.items():
        for _ in range(each):
            value = make(chance)
            yield chance.choice(AROUND).format(value), kind, value
    for kind, frames in (("introduced name", INTRODUCED), ("bare name", BARE)):
        for _ in range(each):
            value = chance.choice(NAMES)
            yield chance.choice(frames).format(value), kind, value


def recalls(seed: int) -> dict[str, float]:
    """The share of each kind that is masked whole."""
    found: dict[str, list[bool]] = defaultdict(list)
    for text, kind, value in planted(seed):
        start, end = text.index(value), text.index(value) + len(value)
        if kind in ("id by name", "birth"):  # what its name says is no secret
            start = next(at for at in range(start, end) if text[at].isdigit())
        hit = any(at <= start and last >= end for _, at, last in find_personal(text))
        found[kind].append(hit)
    return {kind: sum(hits) / len(hits) for kind, hits in found.items()}


def _digits(chance: random.Random, count: int) -> str:
    return "".join(chance.choice("0123456789") for _ in range(count))


def _word(chance: random.Random, letters: str, count: int) -> str:
    return "".join(chance.choice(letters) for _ in range(count))


SMALL, CAPITALS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _mail(chance: random.Random) -> str:
    name = _word(chance, SMALL, 5) + chance.choice(("", ".b", "+news", "_99", "-x"))
    host = chance.choice(("", "mail.")) + _word(chance, SMALL, 6)
    return f"{name}@{host}.{chance.choice(('org', 'co.uk', 'de', 'com.cn'))}"


def _phone(chance: random.Random, regions: tuple[str, ...], written: tuple[int, ...]) -> str:
    kind = chance.choice((phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE))
    number = phonenumbers.example_number_for_type(chance.choice(regions), kind)
    return phonenumbers.format_number(number, chance.choice(written))


def _iban(chance: random.Random) -> str:
    country, length = chance.choice((("DE", 18), ("FR", 0), ("NL", 0), ("AT", 16), ("BE", 0)))
    bank = {"FR": "30006000011234567890189", "NL": f"ABNA{_digits(chance, 10)}", "BE": "539007547034"}.get(country)
    bank = bank or _digits(chance, length)
    body = "".join(str(int(letter, 36)) for letter in bank + country + "00")
    iban = f"{country}{98 - int(body) % 97:02d}{bank}"
    return chance.choice((iban, " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))))


def _card(chance: random.Random) -> str:
    body = chance.choice(("4", "51", "2221", "37", "6011")) + _digits(chance, 14)
    body = body[: 14 if body.startswith("37") else 15]
    number = body + luhn.calc_check_digit(body)
    parts = [number[at : at + 4] for at in range(0, len(number), 4)]
    return chance.choice((number, " ".join(parts), "-".join(parts)))


def _ip(chance: random.Random) -> str:
    four = ".".join(str(chance.randint(1, 254)) for _ in range(4))
    six = ":".join(f"{chance.randint(1, 65535):x}" for _ in range(8))
    return chance.choice((four, six, f"2001:db8::{chance.randint(1, 9999):x}"))


def _key(chance: random.Random) -> str:
    def tail(count: int) -> str:
        return _word(chance, SMALL + CAPITALS + "0123456789", count)

    return chance.choice(
        (
            f"sk-proj-{tail(40)}",
            f"ghp_{tail(36)}",
            f"AKIA{_word(chance, CAPITALS + '0123456789', 16)}",
            f"AIza{tail(35)}",
            f"SG.{tail(22)}.{tail(43)}",
            f"LTAI{tail(20)}",
            f"hf_{tail(34)}",
            f"xoxb-{_digits(chance, 12)}-{tail(24)}",
            f"eyJ{tail(20)}.eyJ{tail(30)}.{tail(40)}",
        )
    )


def _person_id(chance: random.Random) -> str:
    area = chance.choice((f"{chance.randint(1, 665):03d}", f"{chance.randint(667, 899):03d}"))
    chinese = (
        f"110105{chance.randint(1950, 2005)}{chance.randint(1, 12):02d}{chance.randint(1, 28):02d}{_digits(chance, 3)}"
    )
    indian = chance.choice("23456789") + _digits(chance, 10)
    spanish = _digits(chance, 8)
    italian = f"RSSMRA{chance.randint(10, 99)}A{chance.randint(1, 28):02d}H501"
    french = f"{chance.choice('12')}{chance.randint(50, 99)}{chance.randint(1, 12):02d}75{_digits(chance, 6)}"
    return chance.choice(
        (
            f"{area}-{chance.randint(1, 99):02d}-{chance.randint(1, 9999):04d}",
            chinese + ric.calc_check_digit(f"{chinese}0"),
            indian + aadhaar.verhoeff.calc_check_digit(indian),
            spanish + dni.calc_check_digit(spanish),
            italian + codicefiscale.calc_check_digit(italian),
            f"{french}{97 - int(french) % 97:02d}",
            chance.choice(SINGLE_IDS),
        )
    )


def _address(chance: random.Random) -> str:
    number, code = chance.randint(1, 299), chance.randint(10000, 98999)
    return chance.choice(
        (
            f"{number} {chance.choice(('Baker', 'Old Mill', 'Maple'))} {chance.choice(('Street', 'Rd', 'Avenue'))}",
            f"{number} Elm St., Apt 4, Springfield, IL {code}",
            f"{chance.choice(('Musterstraße', 'Lindenweg', 'Berliner Allee'))} {number}, {code} Potsdam",
            f"{number} rue de la Paix, {code} Paris",
            f"Calle Mayor {number}, {code} Madrid",
            f"北京市海淀区中关村大街{number}号",
            f"浦东新区世纪大道{number}号3栋502室",
            f"浦东新区张江路{number}弄5号楼302室",
            *(f"Via Roma {number}", f"Rua Augusta {number}", f"P.O. Box {number}"),
        )
    )


def _introduced(chance: random.Random, frames: tuple[str, ...]) -> str:
    """What only its name tells, with the name."""
    day, month, year = chance.randint(1, 28), chance.randint(1, 12), chance.randint(1930, 2010)
    letter, digits = chance.choice(CAPITALS), _digits(chance, 8)
    return chance.choice(frames).format(letter=letter, digits=digits, day=day, month=month, year=year)


IDS = (
    *("passport number is {letter}{digits}", "Passport No. {letter}{digits}", "Reisepass: {letter}{digits}"),
    *("护照号 {letter}{digits}", "身份证号是{digits}1234567", "driver's license {letter}{digits}", "SSN {digits}9"),
    *(
        "wechat id: wx_{digits}",
        "微信号 wx{digits}",
        "QQ {digits}",
        "account number 1{digits}",
        "银行卡号{digits}{digits}",
    ),
)
BIRTHS = (
    *("born on {day}.{month}.{year}", "DOB: {year}-{month:02}-{day:02}", "date of birth March {day}, {year}"),
    *("born on {day}th of May {year}", "Mein Geburtstag ist der {day}.{month}.{year}"),
    *("geboren am {day}. {month}. {year}", "née le {day}/{month}/{year}", "出生日期:{year}年{month}月{day}日"),
)


def _disguised(chance: random.Random) -> str:
    """Full-width, with signs that nobody sees, or with the @ in words."""
    mail, phone = _mail(chance), f"138{_digits(chance, 8)}"
    name, _, host = mail.partition("@")
    return chance.choice(
        (
            "".join(chr(ord(sign) + 0xFEE0) for sign in mail),
            "\u200b".join(mail),
            f"{name} (at) {host}",
            f"{name} at {host.replace('.', ' dot ')}",
            f"{name}%40{host}",
            f'"{name}"@{host}',
            "".join(chr(ord(sign) + 0xFEE0) for sign in phone),
            "\u200d".join(phone),
        )
    )


def _machine(chance: random.Random) -> str:
    two = [f"{chance.randint(0, 255):02x}" for _ in range(6)]
    four = ".".join(str(chance.randint(1, 254)) for _ in range(4))
    return chance.choice((":".join(two), "-".join(two).upper(), f"::ffff:{four}"))


MAKE = {
    "mail": _mail,
    "phone": lambda chance: _phone(
        chance, PHONE_REGIONS, (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL)
    ),
    "phone abroad": lambda chance: _phone(chance, OTHER_REGIONS, (PhoneNumberFormat.INTERNATIONAL,)),
    "iban": _iban,
    "card": _card,
    "ip": _ip,
    "key": _key,
    "id": _person_id,
    "address": _address,
    "id by name": lambda chance: _introduced(chance, IDS),
    "birth": lambda chance: _introduced(chance, BIRTHS),
    "disguised": _disguised,
    "machine": _machine,
}
