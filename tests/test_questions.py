"""Question pages without Sphinx: their shape, their length, every number bound, every follow-up of the text answered.

One page: python -m pytest tests/test_questions.py -q -k q07

A number typed into a page must be a setting. Small whole numbers pass; a larger one, one with a fraction or one with a
unit must come from a role, or stand in a comment line of the page that owns up to it:

    % settings: 50 GB/s, 0.7, 131072
"""

import re
from functools import lru_cache

import pytest
from docutils import nodes

from labkit.book import drawing, lookup, question_list, sources
from labkit.book.values import LookupProblem
from labkit.paths import ROOT

FOLDER = ROOT / "book" / "questions"
PAGES = sorted(FOLDER.glob("q[0-9][0-9]_*.md"))
SECTIONS = ["Derivation", "Worked numbers", "Proof", "Follow-ups", "Wrong answers", "Rubric"]
FOLLOW_UPS = dict(zip(range(1, 30), [3] * 12 + [4, 4] + [3] * 7 + [1, 2, 3, 2, 3, 1, 2, 4]))
"""Follow-ups that the text prints under each of its 29 answers."""
ROLE = re.compile(r"\{(claim|run|calc|hw)\}`([^`]+)`")
LOOK_UPS = {
    "claim": lookup.claim_number, "run": lookup.run_number, "calc": lookup.calc_number, "hw": lookup.hardware_number,
}  # fmt: skip
UNIT = (
    r"[KMGT]i?B(?:/s)?|kB|bytes?|B|GHz|[TGP]?FLOP(?:/s|/B)?|ms|µs|us|ns|s|seconds?|minutes?|%|percent|[x×]|times|-fold"
)
NUMBER = re.compile(rf"(?<![\w.,\-/\\])(\d+(?:,\d{{3}})*(?:\.\d+)?)(?:[ \u00a0]?({UNIT})(?![\w]))?(?![\w])")
LARGEST_FREE = 64
YEARS = range(1990, 2036)

each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


@pytest.fixture(scope="module", autouse=True)
def no_verdicts():
    """Read the ledger without running its checks: values do not depend on them, only badges do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "verify", list)
        sources.clear()
        yield
    sources.clear()


@lru_cache
def read(path):
    return path.read_text(encoding="utf-8")


def without(pattern, text):
    return re.sub(pattern, " ", text, flags=re.S | re.M)


def sections(text):
    """Second-level heading -> its text."""
    parts = re.split(r"^## +(.+)$", text, flags=re.M)
    return dict(zip((title.strip() for title in parts[1::2]), parts[2::2]))


def prose(text, *, folds=True):
    """What a reader reads as sentences: no comments, code, equations, tables, directive lines; a role is one word."""
    text = without(r"^%[^\n]*$", text)
    text = without(r"^```\{drawing\}.*?^```$", text)
    text = without(r"^(`{3,}).*?^\1$", text)
    text = without(r"\$\$.*?\$\$", text)
    if not folds:
        text = without(r"^:::+\{admonition\} Answer$.*?^:::+$", text)
    text = without(r"^:[^\n]*$", text)
    text = without(r"^\|[^\n]*$", text)
    text = without(r"^\([\w-]+\)=$", text)
    text = ROLE.sub("N", text)
    text = re.sub(r"\$[^$\n]+\$", "X", text)
    text = re.sub(r"\{[\w-]+\}`[^`]*`", "L", text)
    text = re.sub(r"`[^`\n]*`", "C", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def num_words(text):
    return len(re.findall(r"[\w'’.,/-]*\w[\w'’.,/-]*", text))


def roles(text):
    r"""(line, role, its text as the parser hands it over); a bar in a table is written \|."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            line = re.sub(r"(?<!\\)\|", "\n", line).replace("\\|", "|")
            assert line.count("`") % 2 == 0 and all(cell.count("`") % 2 == 0 for cell in line.split("\n")), (
                f"line {number}: write the bar of a role in a table as \\|"
            )
        for role, inner in ROLE.findall(line):
            yield number, role, inner


def unbound(text):
    """(line, number) of typed numbers that are neither small nor named as settings."""
    settings = {
        re.sub(r"[\s,]", "", entry)
        for line in re.findall(r"^% settings:(.*)$", text, flags=re.M)
        for entry in re.split(r",\s|;", line)
    }
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("%", "```", "(")) or re.match(r":\w+:(?! )", line):
            continue
        line = ROLE.sub(" ", line)
        line = re.sub(r"\{[\w-]+\}`[^`]*`|`[^`]*`|\$[^$]*\$|\]\([^)]*\)|https?://\S+", " ", line)
        for match in NUMBER.finditer(line):
            digits, unit = match[1].replace(",", ""), match[2]
            value = float(digits)
            if {digits, f"{digits}{unit or ''}"} & settings:
                continue
            if not unit and "." not in digits and (value <= LARGEST_FREE or int(value) in YEARS):
                continue
            yield number, match[0].strip()


def displayed(text):
    """The page without its display equations, line numbers kept: constants of a derivation are not results."""
    return re.sub(r"\$\$.*?\$\$", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)


@each_page
def test_title_and_sections_are_in_the_fixed_shape(path):
    text, number = read(path), int(path.stem[1:3])
    assert text.startswith(f"(q{number:02d})=\n# Q{number}. "), f"starts {text[:40]!r}"
    title = text.splitlines()[1]
    assert title.endswith("?") and len(title) < 200 and title.count("?") == 1, "the title is one question"
    assert len(re.findall(r"^# ", without(r"^(`{3,}).*?^\1$", text), flags=re.M)) == 1
    assert list(sections(text)) == SECTIONS
    assert "{code-cell}" not in text


@each_page
def test_sixty_seconds_are_sixty_seconds(path):
    found = re.search(r"^:::\{admonition\} In sixty seconds\n:class: tip\n(.*?)^:::$", read(path), flags=re.S | re.M)
    assert found, "no admonition 'In sixty seconds' with class tip"
    assert found.start() < read(path).index("\n## ")
    assert 60 <= num_words(prose(found[1])) <= 110, f"{num_words(prose(found[1]))} words, expected 60 to 110"


@each_page
def test_length(path):
    words = num_words(prose(read(path), folds=False))
    assert 400 <= words <= 900, f"{words} words outside folds and tables, expected 400 to 900"


@each_page
def test_every_role_resolves(path):
    problems, count = [], 0
    for number, role, inner in roles(read(path)):
        count += 1
        try:
            LOOK_UPS[role](inner)
        except LookupProblem as problem:
            problems.append(f"line {number}: {{{role}}}`{inner}`: {problem}")
    assert not problems, "\n".join(problems)
    assert count >= 3, "a page of the bank has numbers, and they come from roles"


@each_page
def test_no_number_is_typed_that_could_be_a_result(path):
    found = [f"line {number}: {what}" for number, what in unbound(displayed(read(path)))]
    assert not found, "use a role, or name the setting in a comment '% settings: ...':\n" + "\n".join(found)


@each_page
def test_worked_numbers_are_a_table_of_roles(path):
    rows = [line for line in sections(read(path))["Worked numbers"].splitlines() if line.startswith("|")]
    assert sum(bool(ROLE.search(row)) for row in rows) >= 2, "expected at least two table rows with roles"


@each_page
def test_follow_ups_are_answered(path):
    text, number = sections(read(path))["Follow-ups"], int(path.stem[1:3])
    parts = re.split(r"^### +(.+)$", text, flags=re.M)
    questions = list(zip(parts[1::2], parts[2::2]))
    least = FOLLOW_UPS.get(number, 1) + 1
    assert len(questions) >= least, f"{len(questions)} follow-ups, expected at least {least}"
    for question, answer in questions:
        fold = re.fullmatch(r"\s*(:::+)\{admonition\} Answer\n:class: dropdown\n(.*?)^\1\s*", answer, flags=re.S | re.M)
        assert fold, f"{question}: expected one folded answer and nothing else"
        assert "**Trap:**" in fold[2], f"{question}: the answer names no trap"
        assert num_words(prose(fold[2])) >= 25, f"{question}: the answer is too short"


@each_page
def test_wrong_answers_and_rubric(path):
    parts = sections(read(path))
    wrong = re.findall(r'^(?:- |\d\. )?\*\*["“].+?["”]\*\* .{30,}', parts["Wrong answers"], flags=re.M)
    assert len(wrong) >= 3, f'{len(wrong)} wrong answers of the form **"..."** rebuttal, expected 3'
    rows = [line.split("|")[1].strip() for line in parts["Rubric"].splitlines() if line.startswith("|")]
    assert rows[0] == "level" and rows[2:] == ["junior", "senior", "staff"], rows
    assert len(set(map(len, re.findall(r"^\|.*\|$", parts["Rubric"], flags=re.M)))) > 1


@each_page
def test_drawings_exist_and_speak(path):
    text = read(path)
    blocks = re.findall(r"^```\{drawing\}(.*?)\n(.*?)^```$", text, flags=re.S | re.M)
    assert text.count("{drawing}") == len(blocks) <= 2
    for name, body in blocks:
        drawing.drawing_function(name.strip())
        options = dict(re.findall(r"^:(\w+): (.+)$", body, flags=re.M))
        assert len(options.get("alt", "")) >= 30 and options.get("caption"), f"{name}: give :alt: and :caption:"


@each_page
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", read(path)):
        assert (path.parent / target).exists(), f"no {target}"


@each_page
def test_voice(path):
    text = prose(read(path))
    for word in ("simply", "obviously", "just", "easily", "of course", "blazing", "game-changer", "seamless"):
        assert not re.search(rf"\b{word}\b", text, flags=re.I), f"the book does not say {word!r}"
    assert not re.search("[\U0001f000-\U0001faff\u2014]", text), "no emoji, no em dash"


def test_checks_bite():
    """The parts that decide, on text where the answer is known."""
    page = "% settings: 50 GB/s, 4,096\nIn 2024 0.66 s at 50 GB/s, 4,096 of 7168, 12 times, H100, {calc}`a.b(c=9.9)`."
    assert [what for _, what in unbound(page)] == ["0.66 s", "7168", "12 times"]
    assert [what for _, what in unbound("12,288 or 1,234.5 GB/s, not 12, 13")] == ["12,288", "1,234.5 GB/s"]
    assert list(roles("| {calc}`a.b(c=1) \\| .1f` | x |")) == [(1, "calc", "a.b(c=1) | .1f")]
    with pytest.raises(AssertionError, match="bar"):
        list(roles("| {calc}`a.b(c=1) | .1f` | x |"))
    assert prose("% settings: 1\n| a | b |\n:class: tip\none two\n").split() == ["one", "two"]
    fold = ":::{admonition} Answer\n:class: dropdown\nfour words of answer\n:::\n"
    assert num_words(prose(f"one {{claim}}`x` $a+b$ three\n\n{fold}", folds=False)) == 4
    assert unbound(displayed("$$ 0.5 x $$\n")) and not list(unbound(displayed("$$ 0.5 x $$\n")))


def test_no_two_pages_share_a_number():
    numbers = [path.stem[:3] for path in PAGES]
    assert len(numbers) == len(set(numbers))


def test_the_list_reads_every_page():
    questions = question_list.read_questions()
    assert [q.path for q in questions] == PAGES
    assert all(q.area and not set("`$\\") & set(q.title) and q.title.endswith("?") for q in questions)
    assert all(q.area != "systems" for q in questions if q.number < 30)
    table = question_list.question_table(questions)
    links = [link["refuri"] for link in table.findall(nodes.reference) if "questions" in link["refuri"]]
    assert links == [f"labkit:book/questions/{path.stem}#{path.stem[:3]}" for path in PAGES]


def test_a_page_can_name_its_area_and_lab(tmp_path):
    text = "(q41)=\n# Q41. Is `a` $b$?\n\n% area: training\n% lab: no_such_lab\n"
    (tmp_path / "q41_a.md").write_text(text, encoding="utf-8")
    (question,) = question_list.read_questions(tmp_path)
    assert (question.title, question.area, question.lab) == ("Is a b?", "training", "no_such_lab")
    assert "no_such_lab (not here yet)" in question_list.question_table([question]).astext()
    (tmp_path / "q42_b.md").write_text("(q42)=\n# Q43. No?\n", encoding="utf-8")
    with pytest.raises(LookupProblem, match=r"q42_b\.md: expected \(qNN\)="):
        question_list.read_questions(tmp_path)
