"""Minimal pairs for grammar, made by rules from small word lists: a good sentence, and a bad one that differs in one
place. A language model knows a rule as far as it finds the good sentence likelier (`evaluate_pairs` in api.py).

English has the kinds of Warstadt et al. (2020): agreement, determiners, binding, polarity, islands, gaps, verb forms.
Korean has particles, honorifics, endings, negation, counters, tense and irregular stems. The sentences are ours."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import Error

PAIRS_PREFIX = "minimal-pairs-"  # minimal-pairs-en is the name of the English ones where a file could be given
Pair = tuple[str, str]  # good, bad


@dataclass(frozen=True)
class Noun:
    """A noun in both numbers, and the pronoun that refers to it in the singular."""

    one: str
    many: str
    pronoun: str = "itself"


PEOPLE = [
    Noun(one, many, pronoun)
    for one, many, pronoun in (
        ("doctor", "doctors", ""), ("teacher", "teachers", ""), ("boy", "boys", "himself"),
        ("girl", "girls", "herself"), ("farmer", "farmers", ""), ("king", "kings", "himself"),
        ("queen", "queens", "herself"), ("student", "students", ""), ("woman", "women", "herself"),
        ("man", "men", "himself"),
        ("child", "children", ""), ("soldier", "soldiers", ""), ("writer", "writers", ""),
    )
]  # fmt: skip
THINGS = [
    Noun(one, many)
    for one, many in (
        ("book", "books"), ("house", "houses"), ("river", "rivers"), ("city", "cities"), ("letter", "letters"),
        ("machine", "machines"), ("picture", "pictures"), ("door", "doors"), ("song", "songs"), ("tree", "trees"),
    )
]  # fmt: skip
NAMES = {"Mary": "herself", "John": "himself", "Anna": "herself", "Peter": "himself", "Susan": "herself",
         "David": "himself"}  # fmt: skip
ADJECTIVES = ("old", "small", "famous", "new", "large", "young", "beautiful", "strange")
STATES = ("tired", "famous", "important", "known", "near", "gone")
# verbs: base, third person, past, participle
INTRANSITIVE = (("sleep", "sleeps", "slept", "slept"), ("arrive", "arrives", "arrived", "arrived"),
                ("laugh", "laughs", "laughed", "laughed"), ("work", "works", "worked", "worked"),
                ("fall", "falls", "fell", "fallen"))  # fmt: skip
TRANSITIVE = (("see", "sees", "saw", "seen"), ("help", "helps", "helped", "helped"), ("know", "knows", "knew", "known"),
              ("follow", "follows", "followed", "followed"), ("visit", "visits", "visited", "visited"),
              ("find", "finds", "found", "found"))  # fmt: skip
MAKING = (("write", "writes", "wrote", "written"), ("break", "breaks", "broke", "broken"),
          ("choose", "chooses", "chose", "chosen"), ("take", "takes", "took", "taken"),
          ("give", "gives", "gave", "given"), ("see", "sees", "saw", "seen"),
          ("know", "knows", "knew", "known"))  # fmt: skip


def agree(noun: Noun, plural: bool, singular_form: str, plural_form: str) -> tuple[str, str, str]:
    """Return the noun in a number with the verb form that agrees and the one that does not."""
    right, wrong = (plural_form, singular_form) if plural else (singular_form, plural_form)
    return noun.many if plural else noun.one, right, wrong


def make_agreement(draw: random.Random) -> Pair:
    """Vary the verb right after its subject."""
    verb = draw.choice(INTRANSITIVE)
    forms = draw.choice([(verb[1], verb[0] + " here"), ("is", "are"), ("was", "were"), ("has", "have")])
    subject, right, wrong = agree(draw.choice(PEOPLE), draw.random() < 0.5, forms[0], forms[1].split()[0])
    if forms[0] in ("is", "was"):
        end = draw.choice(STATES)
    elif forms[0] == "has":
        end = "a new house"
    else:
        end = "here every day"
    return f"The {subject} {right} {end}.", f"The {subject} {wrong} {end}."


def make_distant_agreement(draw: random.Random) -> Pair:
    """Vary the verb after a noun of the other number that stands between it and its subject."""
    plural = draw.random() < 0.5
    between = draw.choice(THINGS)
    subject, right, wrong = agree(draw.choice(PEOPLE), plural, *draw.choice([("is", "are"), ("was", "were")]))
    place = f"{draw.choice(('near', 'behind', 'with'))} the {between.one if plural else between.many}"
    end = draw.choice(STATES)
    return f"The {subject} {place} {right} {end}.", f"The {subject} {place} {wrong} {end}."


def make_clause_agreement(draw: random.Random) -> Pair:
    """Vary the verb after a relative clause that stands between it and its subject."""
    plural, other, verb = draw.random() < 0.5, draw.choice(PEOPLE), draw.choice(TRANSITIVE)
    subject, right, wrong = agree(draw.choice(PEOPLE), plural, *draw.choice([("is", "are"), ("was", "were")]))
    clause = f"that the {other.one if plural else other.many} {verb[2]}"
    return f"The {subject} {clause} {right} tired.", f"The {subject} {clause} {wrong} tired."


def make_determiner(draw: random.Random) -> Pair:
    """Vary this and these, that and those before a noun."""
    noun, verb, who = draw.choice(PEOPLE + THINGS), draw.choice(TRANSITIVE)[2], draw.choice(list(NAMES))
    one, many = draw.choice([("this", "these"), ("that", "those")])
    word, right, wrong = (noun.many, many, one) if draw.random() < 0.5 else (noun.one, one, many)
    return f"{who} {verb} {right} {word}.", f"{who} {verb} {wrong} {word}."


def make_far_determiner(draw: random.Random) -> Pair:
    """Vary the number of a noun after a determiner and an adjective."""
    noun, verb, who = draw.choice(PEOPLE + THINGS), draw.choice(TRANSITIVE)[2], draw.choice(list(NAMES))
    word, right, wrong = draw.choice(
        [("these", noun.many, noun.one), ("those", noun.many, noun.one), ("this", noun.one, noun.many)]
    )
    adjective = draw.choice(ADJECTIVES)
    return f"{who} {verb} {word} {adjective} {right}.", f"{who} {verb} {word} {adjective} {wrong}."


def make_reflexive_number(draw: random.Random) -> Pair:
    """Vary the number of a reflexive, which agrees with its antecedent."""
    noun = draw.choice([one for one in PEOPLE if one.pronoun])
    verb = draw.choice(TRANSITIVE)[2]
    if draw.random() < 0.5:
        return f"The {noun.many} {verb} themselves.", f"The {noun.many} {verb} {noun.pronoun}."
    return f"The {noun.one} {verb} {noun.pronoun}.", f"The {noun.one} {verb} themselves."


def make_reflexive_gender(draw: random.Random) -> Pair:
    """Vary the gender of a reflexive, which agrees with its antecedent."""
    name, verb = draw.choice(list(NAMES)), draw.choice(TRANSITIVE)[2]
    wrong = "himself" if NAMES[name] == "herself" else "herself"
    return f"{name} {verb} {NAMES[name]}.", f"{name} {verb} {wrong}."


def make_binding(draw: random.Random) -> Pair:
    """Bind a reflexive inside its own clause, or outside of it."""
    name, noun, verb = draw.choice(list(NAMES)), draw.choice(PEOPLE), draw.choice(TRANSITIVE)[2]
    front = f"{name} {draw.choice(('said', 'thought', 'knew'))} that the {noun.many} {verb}"
    return f"{front} themselves.", f"{front} {NAMES[name]}."


def make_polarity(draw: random.Random) -> Pair:
    """Use ever after a negative, or without one."""
    noun, verb = draw.choice(PEOPLE), draw.choice(TRANSITIVE + MAKING)
    end = f"has ever {verb[3]} {draw.choice(('this city', 'that house', 'these people'))}."
    good, bad = draw.choice([("No", "Some"), ("No", "This"), ("Not a single", "Every single")])
    return f"{good} {noun.one} {end}", f"{bad} {noun.one} {end}"


def make_only_polarity(draw: random.Random) -> Pair:
    """Use ever after only, which licenses it, or after even."""
    noun, verb = draw.choice(PEOPLE), draw.choice(INTRANSITIVE)
    return f"Only the {noun.one} would ever {verb[0]}.", f"Even the {noun.one} would ever {verb[0]}."


def make_irregular_past(draw: random.Random) -> Pair:
    """Use the past of an irregular verb, or its participle instead."""
    noun, thing = draw.choice(PEOPLE), draw.choice(THINGS)
    verb = draw.choice([v for v in MAKING if v[2] != v[3]])
    return f"The {noun.one} {verb[2]} the {thing.one}.", f"The {noun.one} {verb[3]} the {thing.one}."


def make_participle(draw: random.Random) -> Pair:
    """Use the participle after have or be, or the past instead."""
    noun, thing, verb = draw.choice(PEOPLE), draw.choice(THINGS), draw.choice(MAKING)
    front = draw.choice([f"The {thing.one} was", f"The {noun.one} had"])
    end = " by them" if front.endswith("was") else f" the {thing.one}"
    return f"{front} {verb[3]}{end}.", f"{front} {verb[2]}{end}."


def make_island(draw: random.Random) -> Pair:
    """Ask for an object, or into a clause of time (adjunct island)."""
    who, verb, other = draw.choice(list(NAMES)), draw.choice(TRANSITIVE), draw.choice(list(NAMES))
    first = draw.choice(("visit", "help", "meet", "follow"))
    doing = {"see": "seeing", "help": "helping", "know": "knowing", "follow": "following", "visit": "visiting",
             "find": "finding"}[verb[0]]  # fmt: skip
    after = draw.choice(("before", "after"))
    return f"Who did {who} {first} {after} {doing} {other}?", f"Who did {who} {first} {other} {after} {doing}?"


def make_coordination(draw: random.Random) -> Pair:
    """Ask for an object, or for one part of a pair (coordinate structure)."""
    one, other, verb = draw.choice(list(NAMES)), draw.choice(PEOPLE).many, draw.choice(TRANSITIVE)[0]
    return f"Who did {one} and the {other} {verb}?", f"Who did {one} {verb} and the {other}?"


def make_gap(draw: random.Random) -> Pair:
    """Begin a clause that has a gap with who, or with that."""
    who, noun, verb = draw.choice(list(NAMES)), draw.choice(PEOPLE), draw.choice(TRANSITIVE)[2]
    knew = draw.choice(("knew", "remembered", "saw", "understood"))
    return f"{who} {knew} who the {noun.one} {verb}.", f"{who} {knew} that the {noun.one} {verb}."


def make_no_gap(draw: random.Random) -> Pair:
    """Begin a clause that has no gap with that, or with who."""
    who, noun, verb, other = (
        draw.choice(list(NAMES)),
        draw.choice(PEOPLE),
        draw.choice(TRANSITIVE)[2],
        draw.choice(THINGS),
    )
    knew = draw.choice(("knew", "remembered", "said", "thought"))
    return f"{who} {knew} that the {noun.one} {verb} the {other.one}.", (
        f"{who} {knew} who the {noun.one} {verb} the {other.one}."
    )


def make_transitivity(draw: random.Random) -> Pair:
    """Give an object to a verb that takes one, or to one that does not."""
    noun, thing = draw.choice(PEOPLE), draw.choice(PEOPLE)
    good, bad = draw.choice(TRANSITIVE)[2], draw.choice(INTRANSITIVE[:3])[2]
    return f"The {noun.one} {good} the {thing.many}.", f"The {noun.one} {bad} the {thing.many}."


def make_passive(draw: random.Random) -> Pair:
    """Put a verb that takes an object into the passive, or one that does not."""
    noun, other = draw.choice(PEOPLE), draw.choice(PEOPLE)
    good, bad = draw.choice(TRANSITIVE)[3], draw.choice(INTRANSITIVE[:3])[3]
    return f"The {noun.many} were {good} by the {other.one}.", f"The {noun.many} were {bad} by the {other.one}."


def make_existential(draw: random.Random) -> Pair:
    """Use a weak quantifier after there were, or a strong one."""
    thing, place = draw.choice(PEOPLE + THINGS), draw.choice(("in the city", "near the river", "in the house"))
    good, bad = draw.choice([("many", "most"), ("some", "all the"), ("no", "each of the"), ("few", "both")])
    return f"There were {good} {thing.many} {place}.", f"There were {bad} {thing.many} {place}."


def make_ellipsis(draw: random.Random) -> Pair:
    """Leave out a noun after a number, or a noun after its adjective."""
    one, other = draw.sample(list(NAMES), 2)
    thing, adjective = draw.choice(THINGS), draw.choice(ADJECTIVES)
    return f"{one} found two {adjective} {thing.many} and {other} found three.", (
        f"{one} found two {thing.many} and {other} found three {adjective}."
    )


def make_bare_verb(draw: random.Random) -> Pair:
    """Use the bare form after can, will and did, or another."""
    noun, verb = draw.choice(PEOPLE), draw.choice(INTRANSITIVE + TRANSITIVE)
    helper = draw.choice(("can", "will", "must", "did not", "could"))
    end = "" if verb in INTRANSITIVE else f" the {draw.choice(THINGS).one}"
    wrong = draw.choice((verb[1], verb[2]))
    return f"The {noun.one} {helper} {verb[0]}{end}.", f"The {noun.one} {helper} {wrong}{end}."


def make_pronoun_case(draw: random.Random) -> Pair:
    """Use pronouns as subject and object, or the other way round."""
    verb = draw.choice(TRANSITIVE)[2]
    (one, one_object), (other, other_object) = draw.sample(
        [("he", "him"), ("she", "her"), ("they", "them"), ("I", "me")], 2
    )
    good, bad = f"{one} {verb} {other_object}.", f"{one_object} {verb} {other}."
    return good[0].upper() + good[1:], bad[0].upper() + bad[1:]


# ---------------------------------------------------------------------------------------------------- Korean

KO_PEOPLE = ("학생", "친구", "의사", "농부", "동생", "아이", "작가", "기자", "국민", "배우", "감독", "주민")
KO_ELDERS = ("할머니", "할아버지", "선생님", "아버지", "어머니", "사장님", "교수님")
KO_THINGS = ("책", "영화", "편지", "그림", "음식", "물", "자동차", "문서", "법률", "신문", "사진", "옷")
KO_PLACES = ("학교", "도서관", "시장", "병원", "회사", "극장", "공원", "집")


def has_final(word: str) -> bool:
    """Return whether a Korean word ends in a consonant."""
    return (ord(word[-1]) - ord("가")) % 28 != 0


def attach(word: str, after_consonant: str, after_vowel: str) -> str:
    """Return a word with the form of a particle that its last sound asks for."""
    return word + (after_consonant if has_final(word) else after_vowel)


def make_particle_form(draw: random.Random) -> Pair:
    """Choose 은 or 는, 이 or 가, 을 or 를 by the last sound of the word."""
    forms = draw.choice([("은", "는"), ("이", "가")])
    who, what, verb = (
        draw.choice(KO_PEOPLE),
        draw.choice(KO_THINGS),
        draw.choice(("보았다", "샀다", "찾았다", "좋아한다")),
    )
    if draw.random() < 0.5:
        end = f"{attach(what, '을', '를')} {verb}."
        return f"{attach(who, *forms)} {end}", f"{attach(who, *forms[::-1])} {end}"
    front = attach(who, *forms)
    return f"{front} {attach(what, '을', '를')} {verb}.", f"{front} {attach(what, '를', '을')} {verb}."


def make_case_roles(draw: random.Random) -> Pair:
    """Mark who acts as the subject, or as the object."""
    who, what, verb = (
        draw.choice(KO_PEOPLE),
        draw.choice(KO_THINGS),
        draw.choice(("샀다", "보았다", "버렸다", "찾았다")),
    )
    subject, wrong = attach(who, "이", "가"), attach(who, "을", "를")
    return f"{subject} {attach(what, '을', '를')} {verb}.", f"{wrong} {attach(what, '이', '가')} {verb}."


def make_honorific(draw: random.Random) -> Pair:
    """Use -시- for people to be honoured, after 께서, or for others."""
    elder, who = draw.choice(KO_ELDERS), draw.choice(("동생", "아이", "강아지"))
    plain, honoured = draw.choice(
        [
            ("왔다", "오셨다"),
            ("웃었다", "웃으셨다"),
            ("말했다", "말씀하셨다"),
            ("잔다", "주무신다"),
            ("먹었다", "드셨다"),
            ("갔다", "가셨다"),
        ]
    )
    time = draw.choice(("어제 ", "방금 ", "집에서 ", ""))
    if plain == "잔다":
        time = ""
    if draw.random() < 0.5:
        return f"{elder}께서 {time}{honoured}.", f"{elder}께서 {time}{plain}."
    subject = attach(who, "이", "가")
    return f"{subject} {time}{plain}.", f"{subject} {time}{honoured}."


def make_connective(draw: random.Random) -> Pair:
    """Join clauses by an ending that the stem and the tense allow, or not."""
    who, place = draw.choice(KO_PEOPLE), draw.choice(KO_PLACES)
    subject = attach(who, "이", "가")
    stem, past = draw.choice(
        [("배워", "배웠어"), ("늦어", "늦었어"), ("아파", "아팠어"), ("걸어", "걸었어"), ("배고파", "배고팠어")]
    )
    return draw.choice([
        (f"{subject} {stem}서 {place}에 갔다.", f"{subject} {past}서 {place}에 갔다."),
        (f"{subject} 책을 사러 {place}에 갔다.", f"{subject} 책을 사서러 {place}에 갔다."),
        (f"{subject} 밥을 먹고 {place}에 갔다.", f"{subject} 밥을 먹은고 {place}에 갔다."),
        (f"비가 오면 {subject} {place}에 간다.", f"비가 오는면 {subject} {place}에 간다."),
        (f"{subject} {place}에 가려고 일어났다.", f"{subject} {place}에 갔으려고 일어났다."),
        (f"{subject} {place}에 갔지만 아무도 없었다.", f"{subject} {place}에 갔은지만 아무도 없었다."),
    ])  # fmt: skip


def make_korean_polarity(draw: random.Random) -> Pair:
    """Use 아무도, 전혀, 결코 and 밖에 with a negative, or without one."""
    place = draw.choice(KO_PLACES)
    what = draw.choice(KO_THINGS)
    return draw.choice([
        (f"{place}에 아무도 없었다.", f"{place}에 아무도 있었다."),
        (f"{place}에 아무도 오지 않았다.", f"{place}에 아무도 왔다."),
        (f"나는 그 {attach(what, '을', '를')} 전혀 보지 못했다.", f"나는 그 {attach(what, '을', '를')} 전혀 보았다."),
        (f"그는 결코 {place}에 가지 않는다.", f"그는 결코 {place}에 간다."),
        (f"{what}밖에 없었다.", f"{what}밖에 있었다."),
    ])  # fmt: skip


def make_counter(draw: random.Random) -> Pair:
    """Count things by their own words, or by others'."""
    counted = {
        "권": ("책", "소설", "공책"), "마리": ("고양이", "강아지", "소", "새"), "명": ("학생", "배우", "의사", "기자"),
        "대": ("자동차", "버스", "비행기"), "편": ("영화", "시", "드라마"), "송이": ("꽃", "장미"),
    }  # fmt: skip
    right, wrong = draw.sample(list(counted), 2)
    noun, number = draw.choice(counted[right]), draw.choice(("한", "두", "세", "네", "다섯"))
    end = draw.choice(("있다", "있었다", "필요하다"))
    return f"{noun} {number} {attach(right, '이', '가')} {end}.", f"{noun} {number} {attach(wrong, '이', '가')} {end}."


def make_korean_tense(draw: random.Random) -> Pair:
    """Use the past with yesterday and the future with tomorrow, or the other way round."""
    subject, place = attach(draw.choice(KO_PEOPLE), "이", "가"), draw.choice(KO_PLACES)
    past, future = draw.choice([("갔다", "갈 것이다"), ("왔다", "올 것이다"), ("도착했다", "도착할 것이다")])
    if draw.random() < 0.5:
        when = draw.choice(("어제", "지난주에", "작년에"))
        return f"{when} {subject} {place}에 {past}.", f"{when} {subject} {place}에 {future}."
    when = draw.choice(("내일", "다음 주에", "내년에"))
    return f"{when} {subject} {place}에 {future}.", f"{when} {subject} {place}에 {past}."


def make_modifier(draw: random.Random) -> Pair:
    """End a clause before a noun in -은 or -는, or in another ending."""
    subject, thing = attach(draw.choice(KO_PEOPLE), "이", "가"), draw.choice(KO_THINGS)
    right, wrong = draw.choice(
        [
            ("산", "사고"),
            ("만든", "만들어"),
            ("본", "보고"),
            ("찾은", "찾아"),
            ("좋아하는", "좋아하다"),
            ("버린", "버려서"),
        ]
    )
    end = f"{attach(thing, '이', '가')} 여기에 있다."
    return f"{subject} {right} {end}", f"{subject} {wrong} {end}"


def make_place_particle(draw: random.Random) -> Pair:
    """Use 에서 where something is done, 에 where it goes or is, 에게 to whom, or another."""
    subject, place = attach(draw.choice(KO_PEOPLE), "은", "는"), draw.choice(KO_PLACES)
    other = draw.choice(KO_PEOPLE)
    return draw.choice([
        (f"{subject} {place}에서 일했다.", f"{subject} {place}에 일했다."),
        (f"{subject} {place}에서 밥을 먹었다.", f"{subject} {place}에 밥을 먹었다."),
        (f"{subject} {place}에 있다.", f"{subject} {place}에서 있다."),
        (f"{subject} {place}에 도착했다.", f"{subject} {place}에서 도착했다."),
        (f"{subject} {other}에게 책을 주었다.", f"{subject} {other}에서 책을 주었다."),
    ])  # fmt: skip


def make_korean_passive(draw: random.Random) -> Pair:
    """Use a passive verb without an object, or with one."""
    thing, active, passive = draw.choice(
        [("문", "열었다", "열렸다"), ("창문", "닫았다", "닫혔다"), ("도둑", "잡았다", "잡혔다"),
         ("책", "팔았다", "팔렸다"), ("나무", "잘랐다", "잘렸다"), ("전화", "끊었다", "끊겼다")]
    )  # fmt: skip
    if draw.random() < 0.5:
        return f"{attach(thing, '이', '가')} {passive}.", f"{attach(thing, '을', '를')} {passive}."
    subject = attach(draw.choice(KO_PEOPLE), "이", "가")
    return f"{subject} {attach(thing, '을', '를')} {active}.", f"{subject} {attach(thing, '을', '를')} {passive}."


def make_conjugation(draw: random.Random) -> Pair:
    """Conjugate irregular stems and choose the vowel of the past, or do it as if all were regular."""
    subject = attach(draw.choice(KO_PEOPLE), "이", "가")
    right, wrong = draw.choice(
        [("도왔다", "돕았다"), ("들었다", "듣었다"), ("지었다", "짓었다"), ("먹었다", "먹았다"), ("잡았다", "잡었다"),
         ("썼다", "쓰었다"), ("불렀다", "부르었다"), ("골랐다", "고르았다"), ("앉았다", "앉었다")]
    )  # fmt: skip
    front = draw.choice((f"{subject} 그것을", f"{subject} 오랫동안", f"어제 {subject}"))
    return f"{front} {right}.", f"{front} {wrong}."


Maker = Callable[[random.Random], Pair]
PHENOMENA: Mapping[str, Mapping[str, Maker]] = {
    "en": {
        "agreement": make_agreement, "agreement-distractor": make_distant_agreement,
        "agreement-clause": make_clause_agreement, "determiner-noun": make_determiner,
        "determiner-adjective-noun": make_far_determiner, "reflexive-number": make_reflexive_number,
        "reflexive-gender": make_reflexive_gender, "binding": make_binding, "npi": make_polarity,
        "npi-only": make_only_polarity, "irregular-past": make_irregular_past, "participle": make_participle,
        "island-adjunct": make_island, "island-coordination": make_coordination, "gap": make_gap,
        "no-gap": make_no_gap, "transitivity": make_transitivity, "passive": make_passive,
        "existential": make_existential, "ellipsis": make_ellipsis, "bare-verb": make_bare_verb,
        "pronoun-case": make_pronoun_case,
    },
    "ko": {
        "particle-form": make_particle_form, "case-roles": make_case_roles, "honorific": make_honorific,
        "connective-ending": make_connective, "npi": make_korean_polarity, "counter": make_counter,
        "tense": make_korean_tense, "modifier-ending": make_modifier, "place-particle": make_place_particle,
        "passive": make_korean_passive, "conjugation": make_conjugation,
    },
}  # fmt: skip


def generate_pairs(language: str, each: int = 60, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield up to `each` different pairs of every phenomenon: the columns phenomenon, good and bad."""
    if language not in PHENOMENA:
        raise Error(f"there are no minimal pairs in {language!r}", fix="choose " + " or ".join(PHENOMENA))
    for name, make in PHENOMENA[language].items():
        draw = random.Random(f"{seed} {language} {name}")
        draws = (make(draw) for _ in range(50 * each))
        for good, bad in itertools.islice(dict.fromkeys(pair for pair in draws if pair[0] != pair[1]), each):
            yield {"phenomenon": name, "good": good, "bad": bad}


def find_bundled_pairs(data: object) -> list[dict[str, str]] | None:
    """Return the pairs that a name such as minimal-pairs-ko stands for, None if `data` is something else."""
    if not isinstance(data, str | Path) or not str(data).startswith(PAIRS_PREFIX) or Path(data).exists():
        return None
    return list(generate_pairs(str(data).removeprefix(PAIRS_PREFIX)))
