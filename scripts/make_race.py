"""Fill the results into docs/*/race.md, and its place into each family's page: python scripts/make_race.py [FOLDER …]

With folders of comparisons, their records are first gathered in docs/race/records.jsonl. Without any, the pages are
made anew from that file; where it has no records, the pages say so."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from formers.comparison.api import read_config
from formers.comparison.hypotheses import answer_all, format_rule
from formers.comparison.records import Record, RecordFolder, read_record_lines, write_record_lines
from formers.comparison.report import ComparisonReport, find_caption, render_table_markdown, to_standalone_svg
from formers.reports.run_report import escape_markdown

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = DOCS / "race" / "records.jsonl"
NOT_RUN = {
    "en": "The race has not been run yet: there are no records.",
    "ko": "아직 비교 실험을 실행하지 않았습니다. 기록이 없습니다.",
}


def make_hypotheses(report: ComparisonReport) -> str:
    """List the hypotheses, each with its rule and its answer."""
    lines = []
    for number, answer in enumerate(answer_all(report.measures), 1):
        one = answer.hypothesis
        value, noise, verdict = report.format_answer(answer)[2:]
        shown = "" if answer.value is None else f" ({value}, {report.localise('noise', '잡음')} {noise})"
        lines.append(f"{number}. {report.localise(one.en, one.ko)} `{format_rule(one)}` → **{verdict}**{shown}")
    return "\n".join(lines)


def make_results(report: ComparisonReport) -> str:
    """Make the tables and the pictures of all budgets."""
    if not report.measures.budgets:
        return NOT_RUN[report.language]
    lines = [escape_markdown(line) + "\n" for line in (report.describe_corpus(), report.describe_machines()) if line]
    lines += render_table_markdown(report.build_member_table())
    lines += [*(f"- {escape_markdown(note)}" for note in report.build_tokenizer_notes()), ""]
    for budget in report.measures.budgets:
        lines += [f"### {report.name_budget(budget)}", ""]
        for table in report.list_budget_tables(budget):
            lines += render_table_markdown(table, 4)
        for name, figure in report.draw_pictures(budget).items():
            lines += [f"![{escape_markdown(find_caption(figure))}](../race/{report.language}-{name})", ""]
    return "\n".join(lines).strip("\n")


def make_page(language: str, records: list[Record]) -> str:
    """Return a page with its marked places filled."""
    report = ComparisonReport(records, "ko" if language == "ko" else "en")
    text = (DOCS / language / "race.md").read_text(encoding="utf-8")
    return fill_marked(fill_marked(text, "hypotheses", make_hypotheses(report)), "results", make_results(report))


def fill_marked(text: str, name: str, content: str) -> str:
    """Replace what stands between two marks of a page."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}{content}\n{found[2]}" if content else found[1] + found[2], text)


def make_place(report: ComparisonReport, family: str) -> str:
    """Make the table of a family's ranks under each budget, and say how large the race is; nothing while it has no
    scores."""
    lines, name, local = list[str](), report.name_family(family), report.localise
    for budget in report.measures.budgets:
        cells = [report.name_budget(budget)]
        for table in (report.build_task_table(budget), report.build_likelihood_table(budget)):
            ranked = [row for row in table.rows if row[0].isdigit()]
            row = next((row for row in ranked if row[1] == name), None)
            rank = "–" if row is None else local(f"{row[0]} of {len(ranked)}", f"{len(ranked)}개 중 {row[0]}위")
            cells += [rank, "–" if row is None else row[2]]
        if set(cells[1:]) != {"–"}:
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return ""
    head = local(
        "| budget | rank by fine-tuning | mean score | rank among causal models | bits per byte |",
        "| 예산 | 미세 조정 순위 | 평균 점수 | 인과 언어 모델 중 순위 | 바이트당 비트 수 |",
    )
    words = report.corpus.get("train", {}).get("words", 0)
    size = float(f"{statistics.median(plan['unrolled'] for plan in report.measures.plans.values()):.2g}")
    scale = local(
        f"Of models with about {size:,.0f} parameters, token tables aside, that learned from {words:,} words:",
        f"토큰 임베딩을 뺀 파라미터가 약 {size:,.0f}개인 모델이 {words:,}단어로 학습한 결과입니다.",
    )
    return "\n".join([scale, "", head, "|---|---|---|---|---|", *lines])


def make_family_pages(language: str, records: list[Record]) -> dict[Path, str]:
    """Return the pages of the families that can take part, with their places filled."""
    report = ComparisonReport(records, "ko" if language == "ko" else "en")
    pages = {}
    for path in sorted((DOCS / language / "family").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if "<!-- place -->" in text:
            pages[path] = fill_marked(text, "place", make_place(report, path.stem))
    return pages


def gather(folders: list[Path]) -> None:
    """Gather the records of comparisons, in the order of their families."""
    records: dict[str, Record] = {}
    for folder in folders:
        order = list(read_config(folder).families)
        own = RecordFolder(folder).read_all()
        own.sort(key=lambda record: order.index(record.family) if record.family in order else len(order))
        records |= {record.job: record for record in own}
    write_record_lines(RECORDS, records.values())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        gather([Path(name) for name in sys.argv[1:]])
    gathered = read_record_lines(RECORDS)
    for page_language in NOT_RUN:
        page = make_page(page_language, gathered)
        (DOCS / page_language / "race.md").write_text(page, encoding="utf-8")
        for family_page, family_text in make_family_pages(page_language, gathered).items():
            family_page.write_text(family_text, encoding="utf-8")
        made = ComparisonReport(gathered, "ko" if page_language == "ko" else "en")
        for race_budget in made.measures.budgets:
            for picture_name, picture in made.draw_pictures(race_budget).items():
                path = RECORDS.parent / f"{page_language}-{picture_name}"
                path.write_text(to_standalone_svg(picture), encoding="utf-8")
