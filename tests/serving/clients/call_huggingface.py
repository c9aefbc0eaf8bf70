"""Hugging Face's InferenceClient: every task that the server has, by the address of a model and a task."""

import json
import sys

from huggingface_hub import InferenceClient

base, token = sys.argv[1:3]


def at(path: str) -> InferenceClient:
    return InferenceClient(f"{base}/{path}", token=token)


text = "the cat sat on the mat"
fill = at("bert/fill-mask").fill_mask("the [MASK] sat", top_k=3)
labels = at("classifier/text-classification").text_classification(text)
tags = at("tagger/token-classification").token_classification(text, aggregation_strategy="none", ignore_labels=[])
answer = at("answerer/question-answering").question_answering(question="who sat ?", context=text)
zero = at("entailment/zero-shot-classification").zero_shot_classification(text, ["animals", "weather"])
writer = at("gpt2/text-generation")
print(json.dumps({
    "fill": [one.token_str for one in fill],
    "label": labels.label if hasattr(labels, "label") else labels[0].label,
    "tags": [one.entity for one in tags],
    "answer": answer.answer,
    "zero": sorted(one.label for one in zero),
    "text": writer.text_generation("the cat", max_new_tokens=6),
    "streamed": "".join(writer.text_generation("the cat", max_new_tokens=6, stream=True)),
    "details": writer.text_generation("the cat", max_new_tokens=6, details=True).details.generated_tokens,
    "translation": at("bart/translation").translation(text).translation_text,
    "summary": at("bart/summarization").summarization(text).summary_text,
    "vectors": at("bert/feature-extraction").feature_extraction(["the cat", "고양이"]).tolist(),
    "similarity": at("bert/sentence-similarity").sentence_similarity("the cat", other_sentences=["the cat", "a bird"]),
}))  # fmt: skip
