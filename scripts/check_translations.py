"""Find Korean pages that are older than their English source: python scripts/check_translations.py

docs/ko/sources.json records, for each Korean page, the sums of the English page it was made from and of its own text.
After bringing a Korean page up to date:

    python scripts/check_translations.py --update tutorials/nsmc     # or several pages; --all for all that have changed
    python scripts/check_translations.py --unchanged training        # the English changed, the Korean is still right
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
RECORD = DOCS / "ko" / "sources.json"
# What scripts/make_race.py writes: a family's place in the race; the hypotheses with their answers, and the results.
FILLED_IN = ("place", "hypotheses", "results")
MADE = re.compile(rf"<!-- ({'|'.join(FILLED_IN)}) -->.*?<!-- end of \1 -->", re.DOTALL)
GENERATED = {"claims", "family", "recipes"}  # written in both languages by scripts


def list_pages() -> list[str]:
    """List the English pages that are translated by hand."""
    pages = (path.relative_to(DOCS / "en").with_suffix("").as_posix() for path in (DOCS / "en").rglob("*.md"))
    return sorted(set(pages) - GENERATED)


def compute_sums(page: str) -> dict[str, str]:
    """Compute the sums of a page in both languages, without spaces, line breaks and what the race fills in."""
    sums = {}
    for language in ("en", "ko"):
        path = DOCS / language / f"{page}.md"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        words = " ".join(MADE.sub("", text).split())
        sums[language] = hashlib.sha256(words.encode()).hexdigest()[:16]
    return sums


def read_record() -> dict[str, dict[str, str]]:
    """Read which page was made from what."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def find_stale_pages(record: dict[str, dict[str, str]]) -> list[str]:
    """List the pages whose English source is not the one that the Korean page was made from."""
    return [page for page in list_pages() if record.get(page, {}).get("en") != compute_sums(page)["en"]]


def update_record(pages: list[str], is_unchanged: bool) -> list[str]:
    """Record pages as up to date; return those that are not recorded, because their Korean text has not changed."""
    record, refused = read_record(), []
    for page in pages:
        sums, old = compute_sums(page), record.get(page, {})
        if not is_unchanged and old and old["en"] != sums["en"] and old["ko"] == sums["ko"]:
            refused.append(page)
        else:
            record[page] = sums
    known = set(list_pages())
    kept = {page: record[page] for page in sorted(record) if page in known}
    RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return refused


def main() -> None:
    """Check, or record pages as up to date."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return
    if words and words[0] not in ("--update", "--unchanged", "--all"):
        raise SystemExit(f"{words[0]} is none of --update, --unchanged and --all")
    if unknown := [page for page in words[1:] if page not in list_pages()]:
        raise SystemExit(f"no such page: {', '.join(unknown)}. Pages are named like training or tutorials/nsmc")
    if words:
        pages = find_stale_pages(read_record()) if words[0] == "--all" else words[1:]
        refused = update_record(pages, words[0] == "--unchanged")
        for page in refused:
            print(f"{page}: the English has changed, the Korean has not: translate it, or --unchanged {page}")
        raise SystemExit(bool(refused))
    stale = find_stale_pages(read_record())
    for page in stale:
        print(f"docs/ko/{page}.md is older than docs/en/{page}.md")
    raise SystemExit(bool(stale))


if __name__ == "__main__":
    main()
