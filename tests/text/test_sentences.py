"""Sentences: hand-written cases with | where a sentence ends, properties, and the analyser beside the rules."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.data.readers import load_bundled_corpus
from formers.text.sentences import find_sentence_spans, split_sentences

ENGLISH = """
Mr. Smith went to Washington.| He met Mrs. Jones there.
Dr. Brown and Prof. Green agree.| So do I.
It is 3.14 m long.| The other is 2.72 m.
The U.S. economy grew.| Prices fell.
He lives in the U.S.| He likes it.
She works at Apple Inc. in California.
She left Apple Inc.| She now works alone.
J. K. Rowling wrote it.| J. R. R. Tolkien did not.
George W. Bush was president.| Then came another.
We met at 5 p.m. on Friday.| It rained.
We met at 5 p.m.| It rained.
Use fruit, e.g. apples.| Wash them.
That is, i.e. all of them.| Fine.
Cats vs. dogs is an old question.| Nobody knows.
See Fig. 3 for details.| It is clear.
See p. 12 and pp. 14 to 20.| Then go on.
It is No. 5 on the list.| No. 6 is missing.
Is it true?| Yes, it is.
Stop!| Go back!
What?!| No way!!
Really...| I do not think so.
Well... maybe not.| We shall see.
I... I don't know.| Sorry.
Wait… what is that?| A bird.
“Go home,” he said.| “It is late.”
“Go home.” he said.
"Stop! Go home!" he shouted.| Nobody moved.
"Are you there?" she asked.| He was.
He said, "I am here."| She said nothing.
She said “It is late.”| Then she left.
(He left.)| She stayed.
He left (it was late).| She stayed.
He left (see p. 3. It is long) and came back.| Good.
Yahoo! is a company.| It is old.
Visit http://www.example.com/a.b?c=d&e=f.| Then write to me.
Mail to a.b@example.com.| Wait for an answer.
Version 2.0.1 is out.| Version 3 is not.
1. First do this.| 2. Then do that.
a. The first point.
A. The first point.
IV. The fourth chapter begins here.| It is short.
It cost $5.| 20 people came.
It cost $5.50.| He paid.
It happened in 1990.| The next year was better.
On Jan. 5 we met.| On Feb. 6 we parted.
He sat.| Mary stood.
The cats etc. were fed.| The dogs were not.
They sell apples, pears, etc.| The shop is open.
Smith et al. found it.| Others did not.
John Smith Jr. was there.| His father was not.
He has a Ph.D. in physics.| She has two.
St. Louis is a city.| Mt. Everest is not.
Gen. Lee met Lt. Col. Grant.| They talked.
The company (Acme Co.) failed.| It was sold.
Hello world
First line without a mark\\n|Second line without a mark
A title\\n\\n|The text begins here.| It goes on.
- one item\\n|- another item
the film is bad .| it is long .| do not go .
This is the first line of a text broken by hand at a column to\\nNew York is in its second line.
He paid 1,000.| She paid 2,000.
It was e.g. red.| It was i.e. not blue.
The temperature is 20 °C.| It is warm.
I like C++.| I like C# too.
“Is it?”| “It is.”
He asked: “Why?”| Nobody knew.
It was Tom (?) Smith.| Fine.
Wait ! , said Tom .| He left .
It is over!!!| Really.
One.| Two.| Three.
We met in San Francisco, CA.| The day was fine.
Ask HR.| Robert knows.
It is not mine but FERC's.| Based on this, we left.
It ended." he said.| "Serious trouble came.| We left.
He left the U.K. in May.| We stayed.
He's 5 ft. 10 in. tall.| She is not.
""".strip().split("\n")

KOREAN = """
안녕하세요.| 반갑습니다.
영화를 봤다.| 재미있었다.
정말 재미있어요!| 또 보고 싶어요.
누가 왔습니까?| 아무도 안 왔습니다.
그랬죠.| 저도 그랬죠.
"정말이야?"라고 그가 물었다.| 나는 대답하지 않았다.
그는 “간다. 그리고 온다.”라고 말했다.| 아무도 믿지 않았다.
“안녕!”| 그가 말했다.
그는 ‘끝났다.’고 생각했다.| 아니었다.
지루했지만... 끝까지 봤다.| 후회한다.
좋았다...| 다시 보고 싶다.
글쎄…| 잘 모르겠다.
그 영화는… 정말 좋았다.
원주율은 3.14이다.| 끝이 없다.
시행일은 2020. 3. 5. 이다.| 그 전에는 없다.
2020. 3. 5. 개정되었다.| 그 뒤로는 그대로이다.
가. 목적을 정한다.| 나. 방법을 정한다.
1. 먼저 씻는다.| 2. 그리고 먹는다.
제1조(목적) 이 법은 안전을 목적으로 한다.| 제2조는 없다.
재미있었습니다| 또 볼게요.
정말 재미있었습니다| 추천합니다
너무 좋았어요| 또 보고 싶네요
이런 영화 처음이에요| 강추합니다
배우가 연기를 잘하네요| 감동받았어요
꼭 보세요| 후회 안 합니다
그냥 그랬어요ㅋㅋ| 다음에는 안 봐요
재밌다ㅋㅋㅋ| 또 보자
최고다!!| 정말 최고다!!
다시 돌려봤다.|너무 사랑스럽다.
최고예요!|꼭 보세요!
감동적인 영화..|다시 봐도 좋다..
좋다. ㅋㅋㅋ| 또 보자.
눈물이 났다ㅠㅠ| 슬프다
필요 없는 장면이 많다.| 주요 내용은 좋다.
저는요 이 영화가 싫어요.| 정말로요.
영화가 좋아요 라고 말했다.
갔다 왔다.| 피곤하다.
봤다 하면 운다.| 매번 그렇다.
이건 아니다.| iPhone이 더 낫다.
그는 3시에 왔다.| 5시에 갔다.
첫 줄에는 끝이 없다\\n|둘째 줄도 그렇다
제목\\n|본문은 여기서 시작한다.| 그리고 끝난다.
재미없음\\n|돈 아까움
최악임.| 보지 마셈.
문제가 있음.| 고쳐야 함.
이를 개선하고자 함(안 제2조).| 그 밖의 것은 그대로 둠.
그는 갔다(나는 남았다).| 그뿐이다.
(그는 갔다.)| 나는 남았다.
「문화예술진흥법」에 따른다.| 다른 법은 따르지 않는다.
www.naver.com에서 봤다.| 재미있었다.
평점 9.5점.| 아깝지 않다.
GPT-2를 학습했다.| BERT도 학습했다.
정말?| 진짜로?
와!| 대박!
뭐야?!| 왜 이래?!
끝.
좋은 영화
최고다!라고 외쳤다.| 모두 웃었다.
감독님, 배우님, 고맙습니다.| 잘 봤습니다.
이게 뭐죠?| 모르겠는데요.
이렇게 끝나다니 아쉽네요~| 2편 기대합니다~
내일 만나요^^| 잘 자요^^
これは本です。|それは何ですか？|はい！
“안 돼.”| “왜?”| “그냥.”
10점 만점에 10점!| 최고의 영화.| 말이 필요 없음.
그가 말했다.| "나는 간다."| 그리고 떠났다.
오늘은 춥다.| 내일은 따뜻할까?| 글쎄.
""".strip().split("\n")


def split_case(case: str) -> list[str]:
    return [part.strip() for part in case.replace("\\n", "\n").split("|")]


def join_case(case: str) -> str:
    return case.replace("\\n", "\n").replace("|", "")


def test_there_are_enough_cases():
    assert len(ENGLISH) >= 60
    assert len(KOREAN) >= 60


@pytest.mark.parametrize("case", ENGLISH)
def test_english(case):
    assert split_sentences(join_case(case)) == split_case(case)
    assert split_sentences(join_case(case), "en") == split_case(case)


@pytest.mark.parametrize("case", KOREAN)
def test_korean(case):
    assert split_sentences(join_case(case)) == split_case(case)
    assert split_sentences(join_case(case), "ko") == split_case(case)


ODD = st.sampled_from(
    [*"가나다요까죠음 .!?…\"'”’()[]\n\t1aA,;ㅋ~^。！　", "습니다 ", "Mr. ", "U.S. ", "2020. 3. 5. ", "“"]
)


@given(st.lists(ODD | st.text(max_size=3), max_size=40).map("".join), st.sampled_from(["auto", "en", "ko"]))
def test_nothing_is_lost_but_white_space(text, language):
    last = 0
    for start, end in find_sentence_spans(text, language):
        assert last <= start < end
        assert text[start:end] == text[start:end].strip()
        assert not text[last:start].strip()
        last = end
    assert not text[last:].strip()
    assert split_sentences(text, language) == [text[a:b] for a, b in find_sentence_spans(text, language)]


@given(st.lists(ODD, max_size=30).map("".join))
def test_a_single_sentence_ends_where_it_ended(text):
    """The last sentence does not change when the text before it is gone: boundaries depend on the text near them."""
    if len(found := split_sentences("갔다.\n\n" + text)) > 1:
        assert found[0] == "갔다."
        assert found[1:] == split_sentences(text)


def test_language():
    assert split_sentences("정말 좋았어요 또 봐요", "en") == ["정말 좋았어요 또 봐요"]
    assert split_sentences("it ends. here it begins. Yes.", "auto") == ["it ends. here it begins.", "Yes."]
    assert split_sentences("it ends. here it begins. Yes.", "ko") == ["it ends.", "here it begins.", "Yes."]
    assert split_sentences("") == split_sentences(" \n ") == []
    with pytest.raises(Error, match="no rules for the language 'fr'. Choose auto, en or ko"):
        split_sentences("a", "fr")
    with pytest.raises(Error, match="no splitter 'x'"):
        split_sentences("a", splitter="x")


@pytest.mark.parametrize(("language", "least", "most"), [("en", 100, 400), ("ko", 60, 400)])
def test_bundled_text_gives_sentences_of_a_usual_length(language, least, most):
    found = [s for d in load_bundled_corpus(language)[0][:20] for s in split_sentences(d)]
    assert least / 3 < sum(map(len, found)) / len(found) < most


def test_beside_the_analyser(data):
    """On Korean reviews: almost every end that the rules see, kiwi sees too; kiwi also ends at most dots (는데.. )."""
    pytest.importorskip("kiwipiepy")
    from formers.data.readers import read_documents
    from formers.text.korean import get_analyser
    from formers.text.sentences import EMOTICON_CHARACTERS, END_MARKS

    def ends(text, found):
        return {len(text[:end].rstrip(EMOTICON_CHARACTERS + END_MARKS + " ")) for _, end in found[:-1]}

    both = ours = theirs = 0
    for text in list(read_documents(data / "lm" / "movie_reviews_ko.txt.xz"))[:150_000:500]:
        rules, other = (
            ends(text, find_sentence_spans(text)),
            ends(text, [(s.start, s.end) for s in get_analyser().split_into_sents(text)]),
        )
        both, ours, theirs = both + len(rules & other), ours + len(rules), theirs + len(other)
    print(f"of the rules' ends kiwi has {both / ours:.1%}, of kiwi's the rules have {both / theirs:.1%}")
    assert both / ours > 0.9
    assert both / theirs > 0.6


HARD = [
    "a" * 8,
    "." * 8,
    "요 ",
    "ㅋ",
    ". ",
    '."',
    "(",
    "“",
    "\n",
    " ",
    "다ㅋ",
    "Mr. ",
    '"a. ',
    "1. ",
    "a\n",
    "다.",
    "…ㅋ ",
]


@pytest.mark.full
@pytest.mark.parametrize("unit", HARD)
def test_time_is_linear(unit):
    def took(n):
        best = 9e9
        for _ in range(3):
            begin = time.process_time()
            split_sentences(unit * n)
            best = min(best, time.process_time() - begin)
        return best

    n = 20_000
    while took(n) < 0.05:
        n *= 2
    assert took(2 * n) / took(n) < 2.6
