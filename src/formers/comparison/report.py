"""The report of a comparison: tables, learning curves and a Pareto picture, all made of records alone."""

# ruff: noqa: E501
from __future__ import annotations

import html
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import JSONObject, count_noun
from ..registry import find_family
from ..reports.html import render_page
from ..reports.pictures import draw_curves, draw_frontier
from ..reports.run_report import escape_markdown, render_html_table, render_markdown_table, write_text_file
from ..text.normalise import Language
from ..training.runs.run import format_epochs
from .hypotheses import Answer, answer_all, format_rule
from .measures import Measures, format_spread
from .records import Record
from .settings import CompareConfig

VERDICTS = {
    "supported": ("supported", "지지됨"), "refuted": ("refuted", "기각됨"), "undecided": ("undecided", "결론 없음"),
    "open": ("not yet run", "아직 실행하지 않음"),
}  # fmt: skip
KIND_NAMES = {
    "causal": ("causal", "인과"), "masked": ("masked", "마스크"), "encoder-decoder": ("encoder-decoder", "인코더-디코더"),
    "other": ("other", "기타"),
}  # fmt: skip
LANGUAGE_MARKS: dict[Language, str] = {"en": "", "ko": "-ko"}  # in the names of files
SVG_STYLE = (
    "text{font:12px system-ui,'Noto Sans KR',sans-serif;fill:#1f2430}.soft{fill:#667085}.small{font-size:10px}"
    ".axis{stroke:#e4e7ec}.level{stroke:#667085;stroke-dasharray:5 4}"
)


@dataclass(frozen=True)
class ReportTable:
    """A table with its title and a note below it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class ComparisonReport:
    """The tables and pictures of a comparison, in one language."""

    def __init__(self, records: Sequence[Record], language: Language = "en"):
        self.records, self.measures = list(records), Measures(records)
        self.corpus: JSONObject = next((record.result for record in records if record.kind == "corpus"), {})
        self.language: Language = language

    def localise(self, english: str, korean: str) -> str:
        """Return words in the report's language."""
        return korean if self.language == "ko" else english

    def name_budget(self, budget: str) -> str:
        """Name a budget for people."""
        kind, _, amount = budget.partition("-")
        if kind == "epochs":
            return self.localise(f"Budget A: {format_epochs(float(amount))}", f"예산 A: {amount} 에포크")
        title = find_family(amount).card.title if amount[0].isalpha() else amount
        return self.localise(f"Budget B: equal operations ({title})", f"예산 B: 같은 연산량({title})")

    def name_family(self, family: str) -> str:
        """Return the title of a family."""
        return find_family(family).card.title

    def build_member_table(self) -> ReportTable:
        """Build the table of the models: sizes, operations, speed, memory."""
        m, local, rows = self.measures, self.localise, []
        for family in m.families:
            plan = m.plans[family]
            depth = f"{plan['layers']}+{plan['decoder_layers']}" if plan["decoder_layers"] else str(plan["layers"])
            memory, speed = m.list_values("memory", family), m.list_values("speed", family)
            rows.append([
                self.name_family(family), local(*KIND_NAMES[plan["kind"]]), str(plan["objective"]),
                f"{depth} × {plan['dim']}", f"{plan['unrolled']:,}", f"{plan['body']:,}", f"{plan['parameters']:,}",
                f"{plan['flops_per_token'] / 1e6:,.2f}", f"{speed[0]:,.0f}" if speed else "–",
                f"{memory[0] / 2**30:.2f}" if memory else "–",
            ])  # fmt: skip
        head = (
            local("family", "모델 계열"), local("kind", "종류"), local("objective", "학습 목표"),
            local("layers × width", "레이어 × 너비"), local("size", "크기"), local("stored", "저장된 수"),
            local("all parameters", "전체 파라미터"), local("MFLOP a token", "토큰당 MFLOP"),
            local("tokens/s", "토큰/초"), "GiB",
        )  # fmt: skip
        note = local(
            "Size: parameters of the body without token tables, as if no layer were shared and every layer had one "
            "expert; this is what is equal. Stored: as they are. MFLOP: of a training step. Speed and memory: each "
            "family alone on the machine.",
            "크기: 토큰 임베딩을 뺀 본체의 파라미터 수입니다. 공유하는 레이어도 각각 세고 전문가는 레이어마다 하나만 센 값이며, 이 값을 같게 "
            "맞춥니다. 저장된 수: 실제로 저장하는 파라미터 수. MFLOP: 학습 스텝 기준. 속도와 메모리: 하드웨어를 혼자 쓸 때의 값.",
        )
        return ReportTable(local("The models", "모델"), head, rows, note)

    def build_tokenizer_notes(self) -> list[str]:
        """List the families that read the corpus otherwise than the others."""
        return [f"{self.name_family(f)}: {self.translate_note(p)}" for f, p in self.measures.plans.items() if p["note"]]

    def translate_note(self, plan: JSONObject) -> str:
        """Return why a family reads the corpus in its own way."""
        if self.language == "en":
            return str(plan["note"])
        own = "문자를 읽고 정해진 어휘의 단어를 예측하므로 토크나이저가 다릅니다"
        return own if plan["tokenizer"] == "characters" else "쌍으로 학습하므로 문장과 그다음 문장을 짝지어 읽습니다"

    def build_training_table(self, budget: str) -> ReportTable:
        """Build the table of pretraining under a budget."""
        m, local, rows = self.measures, self.localise, []
        for family in m.families:
            runs = m.select("pretrain", family, budget)
            if not runs:
                continue
            one = runs[0].result
            capped = local(" (time limit)", " (시간 제한)") if one["is_capped"] else ""
            rows.append([
                self.name_family(family), str(len(runs)), f"{one['steps']:,}{capped}", f"{one['epochs']:.1f}",
                f"{one['tokens'] / 1e6:,.2f}", f"{one['flops']:.2e}",
                f"{statistics.fmean(r.result['train_seconds'] for r in runs) / 60:.1f}",
                f"{one['lr']:.2g} (×{one['factor']:g})", format_spread([r.result["loss"] for r in runs]),
            ])  # fmt: skip
        head = (
            local("family", "모델 계열"), local("seeds", "시드"), local("steps", "스텝"), local("epochs", "에포크"),
            local("M tokens", "백만 토큰"), "FLOP", local("minutes", "분"), local("learning rate", "학습률"),
            local("validation loss", "검증 손실"),
        )  # fmt: skip
        note = local(
            "Validation losses are of each family's own objective: only those of the same objective are comparable.",
            "검증 손실은 모델 계열마다 자신의 학습 목표로 잰 값이므로, 학습 목표가 같은 것끼리만 비교할 수 있습니다.",
        )
        return ReportTable(local("Pretraining", "사전 학습"), head, rows, note)

    def build_likelihood_table(self, budget: str) -> ReportTable:
        """Build the ranking of causal models by bits per byte."""
        m, local = self.measures, self.localise
        bits = {f: m.list_values("bits_byte", f, budget) for f in m.families}
        order = sorted((f for f in bits if bits[f]), key=lambda f: statistics.fmean(bits[f]))
        rows = [
            [str(rank), self.name_family(f), format_spread(bits[f], 4),
             format_spread(m.list_values("bits_byte_sentences", f, budget), 4),
             format_spread(m.list_values("pairs", f, budget), 1, 100)]
            for rank, f in enumerate(order, 1)
        ]  # fmt: skip
        head = ("", local("family", "모델 계열"), local("articles", "글"), local("sentences", "문장"),
                local("pairs, %", "문장 쌍, %"))  # fmt: skip
        title = local(
            "Causal models by bits per byte of the test text", "인과 언어 모델: 테스트 텍스트의 바이트당 비트 수"
        )
        return drop_empty_last_column(ReportTable(title, head, rows))

    def build_apart_table(self, budget: str) -> ReportTable:
        """Build the table of models whose likelihoods are comparable with no causal one."""
        m, local, rows = self.measures, self.localise, []
        for family in m.families:
            results = [r.result for r in m.select("score", family, budget)]
            if not results or results[0]["kind"] not in ("masked", "other"):
                continue
            masked = results[0]["kind"] == "masked"
            measure = local("pseudo-perplexity", "유사 퍼플렉시티") if masked else local(
                "perplexity, left to right", "퍼플렉시티(왼쪽부터)")  # fmt: skip
            rows.append([
                self.name_family(family), measure, format_spread([r["documents"]["perplexity"] for r in results], 2),
                format_spread(m.list_values("pairs", family, budget), 1, 100),
            ])  # fmt: skip
        head = (
            local("family", "모델 계열"),
            local("measure", "지표"),
            local("value", "값"),
            local("pairs, %", "문장 쌍, %"),
        )
        note = local(
            "Not ranked: a masked model sees both sides of each token, the others have another order or vocabulary. "
            "No value here may be compared with a perplexity above.",
            "순위를 매기지 않습니다. 마스크 언어 모델은 토큰의 양쪽을 모두 보고, 나머지는 순서나 어휘가 다릅니다. 이 값들은 위의 값과 비교할 수 없습니다.",
        )
        return drop_empty_last_column(ReportTable(local("Shown apart", "따로 보여 주는 값"), head, rows, note))

    def build_task_table(self, budget: str) -> ReportTable:
        """Build the ranking of all families by their mean fine-tuning score."""
        m, local = self.measures, self.localise
        means = {f: m.list_mean_scores(f, budget) for f in m.families}
        scored = [f for f in m.families if m.select("tune", f, budget)]
        order = sorted(scored, key=lambda f: (not means[f], -statistics.fmean(means[f] or [0.0])))
        rows = [
            [str(rank) if means[f] else "–", self.name_family(f), format_spread(means[f], 2, 100),
             *(format_spread(m.list_task_scores(f, budget, task), 2, 100) for task in m.tasks)]
            for rank, f in enumerate(order, 1)
        ]  # fmt: skip
        rows += self.build_baseline_rows() if rows else []
        metrics = {r.task: r.result["metric"] for r in m.records if r.kind == "tune"}
        head = ("", local("family", "모델 계열"), local("mean", "평균"), *(f"{t} ({metrics[t]})" for t in m.tasks))
        note = local("Mean ± standard deviation over seeds, and their number; a single value is of one seed.",
                     "평균 ± 시드 간 표준편차와 시드 수입니다. 값이 하나면 시드가 하나입니다.")  # fmt: skip
        return ReportTable(local("Fine-tuning, all families", "미세 조정: 모든 모델 계열"), head, rows, note)

    def build_baseline_rows(self) -> list[list[str]]:
        """Build the rows of the linear model and of the most frequent label, where they were measured."""
        rows = []
        names = {"baseline": self.localise("TF-IDF + linear", "TF-IDF + 선형 모델"),
                 "majority": self.localise("most frequent label", "가장 흔한 레이블")}  # fmt: skip
        for key, name in names.items():
            seen = {r.task: r.result[key].get(r.result["metric"]) for r in self.measures.records
                    if r.kind == "tune" and r.result.get(key)}  # fmt: skip
            values = [seen.get(task) for task in self.measures.tasks]
            if any(value is not None for value in values):
                full = [value for value in values if value is not None]
                mean = f"{100 * statistics.fmean(full):.2f}" if len(full) == len(values) else "–"
                rows.append(["", name, mean, *("–" if v is None else f"{100 * v:.2f}" for v in values)])
        return rows

    def build_hypothesis_table(self) -> ReportTable:
        """Build the table of the hypotheses about families that take part, and what the records say."""
        local, members = self.localise, set(self.measures.families)
        answers = answer_all(self.measures)
        about = {a.hypothesis.name: {f for term in a.hypothesis.terms for f in term.families} for a in answers}
        rows = [self.format_answer(answer) for answer in answers if about[answer.hypothesis.name] <= members]
        head = (local("hypothesis", "가설"), local("rule", "규칙"), local("value", "값"), local("noise", "잡음"),
                local("answer", "답"))  # fmt: skip
        note = local(
            "Written down before the runs. A is the budget of epochs, B that of operations. Noise: two standard errors "
            "from the deviation between seeds; a family with one seed is taken to vary as much as those that have "
            "several. – where no family has several.",
            "실행하기 전에 적어 둔 가설입니다. A는 에포크 예산, B는 연산량 예산입니다. 잡음: 시드 간 편차로 구한 표준오차의 두 배입니다. "
            "시드가 하나인 모델 계열의 편차는 시드가 여럿인 모델 계열의 편차와 같다고 봅니다. 시드가 여럿인 모델 계열이 없으면 –로 표시합니다.",
        )
        return ReportTable(local("Hypotheses", "가설"), head, rows, note)

    def format_answer(self, answer: Answer) -> list[str]:
        """Format a row of the hypotheses."""
        one = answer.hypothesis
        words = self.localise(*VERDICTS[answer.verdict])
        value = "–" if answer.value is None else f"{answer.value:+.4f}"
        noise = "–" if answer.noise is None else f"{answer.noise:.4f}"
        return [self.localise(one.en, one.ko), format_rule(one), value, noise, words]

    def build_missing_table(self) -> ReportTable | None:
        """Build the table of jobs without a result; None if all have one."""
        lost = [record for record in self.records if record.status != "done"]
        if not lost:
            return None
        local = self.localise
        rows = [[record.job, record.status, record.error] for record in lost]
        return ReportTable(
            local("Without a result", "결과가 없는 작업"), (local("job", "작업"), "", local("why", "이유")), rows
        )

    def list_tables(self) -> list[ReportTable]:
        """List all tables but those of single budgets; the hypotheses only where one is about families of this race."""
        hypotheses = self.build_hypothesis_table()
        return [self.build_member_table(), *([hypotheses] if hypotheses.rows else [])]

    def list_budget_tables(self, budget: str) -> list[ReportTable]:
        """List the tables of a budget that have rows."""
        tables = [self.build_task_table(budget), self.build_likelihood_table(budget), self.build_apart_table(budget),
                  self.build_training_table(budget)]  # fmt: skip
        return [table for table in tables if table.rows]

    def draw_pictures(self, budget: str) -> dict[str, str]:
        """Draw the pictures of a budget as SVG figures, by file name."""
        m, local, pictures = self.measures, self.localise, dict[str, str]()
        for axis, label in (("flops", local("operations of pretraining", "사전 학습 연산량")),
                            ("parameters", local("parameters", "파라미터 수")),
                            ("speed", local("tokens a second", "초당 토큰 수"))):  # fmt: skip
            points = []
            for family in m.families:
                xs, ys = m.list_values(axis, family, budget), m.list_mean_scores(family, budget)
                if xs and ys:
                    points.append((statistics.fmean(xs), 100 * statistics.fmean(ys), self.name_family(family)))
            if len(points) > 1:
                caption = local(f"mean fine-tuning score by {label}; the line joins those that no other beats in both",
                                f"{label}에 따른 평균 미세 조정 점수. 선은 두 값 모두에서 다른 모델에 뒤지지 않는 모델을 잇습니다")  # fmt: skip
                pictures[f"pareto-{axis}-{budget}.svg"] = draw_frontier(
                    points, caption, label, local("score", "점수"), is_cheaper_better=axis != "speed"
                )
        for kind, names in KIND_NAMES.items():
            lines = {}
            for family in m.families:
                runs = m.select("pretrain", family, budget)
                if runs and m.plans[family]["kind"] == kind and runs[0].result["curve"]:
                    plan = m.plans[family]
                    lines[self.name_family(family)] = [
                        (step * plan["step_flops"], loss) for step, loss in runs[0].result["curve"]
                    ]
            if lines:
                caption = local(f"validation loss over operations: {names[0]} models",
                                f"연산량에 따른 검증 손실: {names[1]} 모델")  # fmt: skip
                across, up = local("operations", "연산량"), local("nats", "nat")
                pictures[f"curves-{kind}-{budget}.svg"] = draw_curves(lines, caption, across, up, log_x=True)
        return pictures

    def describe_machines(self) -> str:
        """Name the machines of all records."""
        names = {f"{r.machine.get('name')} ({r.machine.get('device')}), torch {r.machine.get('torch')}"
                 for r in self.measures.records if r.machine}  # fmt: skip
        return "; ".join(sorted(names))

    def describe_corpus(self) -> str:
        """Say how large the corpus is."""
        if "train" not in self.corpus:
            return ""
        counts = [self.corpus[part] for part in ("train", "valid", "test")]
        words = [f"{count['words']:,}" for count in counts]
        cut = ("", "")
        if num := self.corpus.get("cut_documents"):
            cut = (f" They are sections of {count_noun(num, 'document')}.", f" 문서 {num}개를 나눈 구간입니다.")
        return self.localise(
            f"Text: {words[0]} words in {counts[0]['documents']:,} documents to learn from, {words[1]} for validation, "
            f"{words[2]} for the test.{cut[0]}",
            f"텍스트: 학습 {words[0]}단어(문서 {counts[0]['documents']:,}개), 검증 {words[1]}단어, 테스트 {words[2]}단어.{cut[1]}",
        )


def drop_empty_last_column(table: ReportTable) -> ReportTable:
    """Leave out the last column of a table if nothing was measured for it."""
    if any(row[-1] != "–" for row in table.rows):
        return table
    return replace(table, head=table.head[:-1], rows=[row[:-1] for row in table.rows])


def find_caption(figure: str) -> str:
    """Return the caption of a figure of a page, as the text that stands for it where it cannot be seen."""
    caption = re.search(r"<figcaption[^>]*>(.*?)</figcaption>", figure, re.DOTALL)
    assert caption is not None
    return html.unescape(caption[1])


def to_standalone_svg(figure: str) -> str:
    """Turn a figure of a page into an SVG file with its own colours."""
    drawing = re.search(r"<svg .*</svg>", figure, re.DOTALL)
    assert drawing is not None
    begin, _, rest = drawing[0].partition(">")
    opening = begin.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="picture" ', 1)
    return f"{opening}><style>{SVG_STYLE}</style>{rest}\n"


def render_table_html(table: ReportTable) -> list[str]:
    """Render a table with its title and its note."""
    note = f'<p class="soft">{html.escape(table.note)}</p>' if table.note else ""
    body = render_html_table(table.head, table.rows) if table.rows else "<p>–</p>"
    return [f"<h3>{html.escape(table.title)}</h3><figure>{body}</figure>{note}"]


def render_table_markdown(table: ReportTable, level: int = 3) -> list[str]:
    """Render a table with its title and its note as Markdown."""
    lines = [f"{'#' * level} {escape_markdown(table.title)}", ""]
    lines += [*render_markdown_table(table.head, table.rows), ""] if table.rows else ["–", ""]
    return [*lines, table.note, ""] if table.note else lines


def render_comparison(report: ComparisonReport, title: str, place: str = "") -> tuple[str, str, dict[str, str]]:
    """Render the page, the Markdown and the pictures of a comparison; Markdown finds them in `place`."""
    local = report.localise
    facts = [line for line in (report.describe_corpus(), report.describe_machines()) if line]
    body = [f"<h1>{html.escape(title)}</h1>", *(f'<p class="soft">{html.escape(line)}</p>' for line in facts)]
    text = [f"# {escape_markdown(title)}", "", *(f"{escape_markdown(line)}\n" for line in facts)]
    pictures: dict[str, str] = {}
    for table in report.list_tables():
        body += render_table_html(table)
        text += render_table_markdown(table, 2)
    for note in report.build_tokenizer_notes():
        body.append(f'<p class="soft">{html.escape(note)}</p>')
        text += [f"- {escape_markdown(note)}"]
    for budget in report.measures.budgets:
        body.append(f"<h2>{html.escape(report.name_budget(budget))}</h2>")
        text += ["", f"## {report.name_budget(budget)}", ""]
        own = report.draw_pictures(budget)
        pictures |= own
        for table in report.list_budget_tables(budget):
            body += render_table_html(table)
            text += render_table_markdown(table)
        body += own.values()
        text += [f"![{escape_markdown(find_caption(figure))}]({place}{name})" for name, figure in own.items()]
    if not report.measures.budgets:
        nothing = local("Nothing has been pretrained yet.", "아직 사전 학습한 모델이 없습니다.")
        body.append(f"<p>{nothing}</p>")
        text += [nothing, ""]
    if (missing := report.build_missing_table()) is not None:
        body += render_table_html(missing)
        text += ["", *render_table_markdown(missing, 2)]
    return render_page(title, body, report.language), "\n".join(text) + "\n", pictures


def write_comparison_report(folder: Path, config: CompareConfig, records: Sequence[Record]) -> Path:
    """Write report.html, report.md and the pictures into the folder of a comparison, and report-ko.* with those of the
    folder pictures-ko in Korean; returns the first."""
    order = {family: number for number, family in enumerate(config.families)}
    chosen = sorted(records, key=lambda record: order.get(record.family or "", len(order)))
    for language, mark in LANGUAGE_MARKS.items():
        report = ComparisonReport(chosen, language)
        count = len(config.families)
        title = report.localise(
            f"A race of {count} {'family' if count == 1 else 'families'}", f"모델 계열 {count}개의 비교 실험"
        )
        page, text, pictures = render_comparison(report, title, f"pictures{mark}/")
        (folder / f"pictures{mark}").mkdir(exist_ok=True)
        for name, figure in pictures.items():
            write_text_file(folder / f"pictures{mark}" / name, to_standalone_svg(figure))
        write_text_file(folder / f"report{mark}.html", page)
        write_text_file(folder / f"report{mark}.md", text)
    return folder / "report.html"
