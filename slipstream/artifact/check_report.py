"""The result of a check as a file for CI: JUnit's XML or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from slipstream.artifact.check import PARTS, CheckPart, CheckResult
from slipstream.errors import InputError

_KINDS = (".xml", ".json")


def check_report_file(path: Path) -> None:
    """Refuse, before any work is done, a file that a report cannot be written to."""
    if path.suffix not in _KINDS:
        raise InputError(f"a report is JUnit's .xml or .json, not {path.name}: give it one of these endings")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: give a file in a directory that is there")


def write_report(path: Path, result: CheckResult) -> None:
    try:
        path.write_text(_junit(result) if path.suffix == ".xml" else json.dumps(result.to_json(), indent=1) + "\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another --report") from error


def failed_report(model: str, lock: str, error: str) -> CheckResult:
    """A check that could not be done, as one that failed at once."""
    first, *others = PARTS
    return CheckResult(
        model, lock, (CheckPart(first, False, error), *(CheckPart(name, None, "left out") for name in others))
    )


def _junit(result: CheckResult) -> str:
    failures, left_out = (sum(part.passed is value for part in result.parts) for value in (False, None))
    counts = {
        "name": f"slipstream check {result.model}",
        "tests": str(len(result.parts)),
        "failures": str(failures),
        "errors": "0",
        "skipped": str(left_out),
        "time": f"{sum(part.seconds for part in result.parts):.3f}",
    }
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", counts)
    for part in result.parts:
        case = ElementTree.SubElement(
            suite, "testcase", classname="slipstream.check", name=part.name, time=f"{part.seconds:.3f}"
        )
        if part.passed is False:
            ElementTree.SubElement(case, "failure", message=part.text).text = part.text
        elif part.passed is None:
            ElementTree.SubElement(case, "skipped", message=part.text)
        else:
            ElementTree.SubElement(case, "system-out").text = part.text
    if result.warnings:
        ElementTree.SubElement(suite, "system-err").text = "\n".join(result.warnings)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
