"""The sections of a job that name its data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from farflung.job.section import Count, Section

__all__ = ["DataSpec", "ImageSpec", "MixtureSpec"]

Positive = Annotated[float, Field(gt=0.0)]


class MixtureSpec(Section):
    """A dataset of a mixture."""

    #: A file or folder, as `data.path`.
    path: str
    #: Its share of the samples, in proportion to the other weights.
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    #: The column of text, if it is not `data.text`.
    text: str = ""
    #: The column of chats, if it is not `data.messages`.
    messages: str = ""


class ImageSpec(Section):
    """How images are normalized, and changed at random in training. The changes depend on seed and position in the training."""

    #: Black pixels on each side of an image, before a part of its size is cut out at a random place. 0: no crop.
    crop: Annotated[int, Field(ge=0, le=1024)] = 0
    #: The probability with which an image is mirrored.
    flip: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    #: Subtracted from red, green and blue, which are 0 to 1. The default is the mean of ImageNet.
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    #: Divides red, green and blue. The default is the deviation of ImageNet.
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)


class DataSpec(Section):
    """The data that fill the inputs of the model, as files on the machines that read them."""

    #: `text`: text files, tokenized. `array`: `.npy` files. `images`: one folder for each class. `dataset`: tables in Parquet,
    #: JSONL, CSV or Arrow files, or WebDataset shards (`.tar`). `caller`: the data of `farflung.train`. A job file must name one
    #: of the first four.
    kind: Literal["text", "array", "images", "dataset", "caller"] = "caller"
    #: A file or folder, relative to the worker's `--data` folder, or a URL (`s3://...`, `https://...`). `{stdlib}` is the folder
    #: of Python's standard library.
    path: str = ""
    #: Datasets in place of `path`, each with a weight.
    mixture: Annotated[tuple[MixtureSpec, ...], Field(max_length=64)] = ()
    #: The column of a dataset that holds text.
    text: str = ""
    #: The column of a dataset that holds chats: lists of messages with `role` and `content`.
    messages: str = ""
    #: How the texts or chats of a dataset fill samples. `whole`: several in a sample, none of them cut unless it is longer than a
    #: sample. `none`: one in each sample. `split`: one stream of tokens, cut into samples.
    packing: Literal["whole", "none", "split"] = "whole"
    #: The tokens of chats that count in the loss.
    loss_on: Literal["assistant", "all"] = "assistant"
    #: The files to read in a folder.
    glob: str = "**/*"
    #: `bytes`, `chars`, or the path of a `tokenizer.json` or of its folder. Chats need a folder with a chat template.
    tokenizer: str = "bytes"
    #: Tokens in each sample of text.
    sequence: Count = 128
    #: The file of labels, if `path` is a single `.npy` file.
    labels: str = ""
    #: Height and width in pixels to which images are scaled.
    size: Annotated[int, Field(ge=1, le=8192)] = 32
    #: Normalization and augmentation of images.
    image: ImageSpec = ImageSpec()
    #: The field of the data that fills an input of the model (input = field), if the names differ.
    fields: dict[str, str] = {}
    #: Files for evaluation.
    eval_path: str = ""
    #: The share of samples for evaluation, if `eval_path` is empty. Training does not use these samples.
    eval_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05

    @property
    def unchanged(self) -> DataSpec:
        """These data without random changes, as an evaluation reads them."""
        return self.model_copy(update={"image": self.image.model_copy(update={"crop": 0, "flip": 0.0})})

    @property
    def tokenized(self) -> bool:
        """Whether samples are tokens."""
        first = self.parts[0]
        return self.kind == "text" or (self.kind == "dataset" and bool(first.text or first.messages))

    @property
    def parts(self) -> tuple[DataSpec, ...]:
        """The datasets of a mixture as data of their own (otherwise: these data)."""
        found = []
        for part in self.mixture:
            own = {key: value for key, value in (("text", part.text), ("messages", part.messages)) if value}
            update: dict[str, object] = {"path": part.path, "mixture": (), **({"text": "", "messages": "", **own} if own else {})}
            found.append(self.model_copy(update=update))
        return tuple(found) or (self,)
