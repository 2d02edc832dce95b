"""CSV, JSON, JSON-lines and Parquet files as rows of named values."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from ..core.errors import DataFileError, InvalidInputError, MissingExtraError, one_of

FileFormat = Literal["csv", "tsv", "json", "jsonl", "parquet"]

Row = dict[str, Any]

_ENDINGS = {".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

# "007" and "1_000" are names, not numbers, though Python would read them as such.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|[+-]?inf", re.IGNORECASE)


def format_of(path: Path) -> FileFormat:
    """Return the format that a file's name tells; ``.gz`` behind it is fine.

    Raises:
        InvalidInputError: the ending is none of those known.
    """
    name = path.name.lower().removesuffix(".gz")
    ending = _ENDINGS.get(Path(name).suffix)
    if ending is None:
        raise InvalidInputError(
            f"{path} must end in {one_of(_ENDINGS)} (or the same with .gz), or give format= one of "
            f"{one_of(get_args(FileFormat))}."
        )
    return ending  # type: ignore[return-value]


def read_rows(path: Path, kind: FileFormat) -> list[Row]:
    """Return the rows of a table file; CSV columns that hold nothing but numbers as numbers, JSON and Parquet as typed.

    Raises:
        DataFileError: the file can't be read, or isn't what its format says; the message names the line.
    """
    try:
        if kind == "parquet":
            return _parquet_rows(path)
        with _open_text(path) as file:
            if kind in ("csv", "tsv"):
                return _csv_rows(path, file, "\t" if kind == "tsv" else ",")
            return list(_json_lines(path, file)) if kind == "jsonl" else _json_rows(path, file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"{path} can't be read: {error}.") from error


def _open_text(path: Path) -> TextIO:
    # utf-8-sig drops the mark that spreadsheets put in front, which would become part of the first column's name.
    if path.name.lower().endswith(".gz"):
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv_rows(path: Path, file: TextIO, delimiter: str) -> list[Row]:
    csv.field_size_limit(2**31 - 1)  # generated texts exceed the 128 KiB that the module allows
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if not header:
            return []
        if len(set(header)) < len(header):
            raise DataFileError(f"{path}, line 1: two columns have the same name in {header}.")
        columns: list[list[str]] = [[] for _ in header]
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataFileError(
                    f"{path}, line {reader.line_num}: {len(cells)} values for {len(header)} columns; quote values "
                    "that hold the delimiter."
                )
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
    except csv.Error as error:
        raise DataFileError(f"{path}, line {reader.line_num}: {error}.") from error
    typed = [_numbers_if_all(column) for column in columns]
    return [dict(zip(header, values, strict=True)) for values in zip(*typed, strict=True)]


def _numbers_if_all(texts: list[str]) -> list[Any]:
    """Return a column's texts as numbers, empty ones as None, if they are nothing else; otherwise as they are."""
    filled = [text for text in texts if text]
    if filled and all(_INTEGER.fullmatch(text) for text in filled):
        return [int(text) if text else None for text in texts]
    if filled and all(_FLOAT.fullmatch(text) for text in filled):
        return [float(text) if text else None for text in texts]
    return list(texts)


def _json_lines(path: Path, file: TextIO) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataFileError(f"{path}, line {number}: not JSON ({error}); one object per line is needed.") from error
        if not isinstance(row, dict):
            raise DataFileError(f"{path}, line {number}: must be a JSON object, got a {type(row).__name__}.")
        yield row


def _json_rows(path: Path, file: TextIO) -> list[Row]:
    try:
        document = json.load(file)
    except ValueError as error:
        raise DataFileError(
            f"{path}: not JSON ({error}); name the file .jsonl if it has one object per line."
        ) from error
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise DataFileError(f"{path} must hold a JSON array of objects, one per example.")
    return document


def _parquet_rows(path: Path) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Parquet files need pyarrow: pip install 'fastbudget[parquet]'.") from error
    try:
        rows: list[Row] = parquet.ParquetFile(path).read().to_pylist()
    except pyarrow.ArrowException as error:
        raise DataFileError(f"{path} is no readable Parquet file: {error}.") from error
    return rows
