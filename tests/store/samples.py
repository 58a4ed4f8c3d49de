"""Small made-up contents for the stores of these tests."""

from __future__ import annotations

from typing import Any

from slipstream.store import OperatorRecord, ProgramRecord, Store, StoreLocation, TrialRecord

HARDWARE = {"cpu": "neoverse-n1", "threads": 2, "target": {"kind": "llvm", "mcpu": "neoverse-n1"}}
OTHER_HARDWARE = {"cpu": "skylake", "threads": 8}


def operator(key: str = "aa00", **changes: Any) -> OperatorRecord:
    fields: dict[str, Any] = {
        "key": key,
        "name": f"matmul {key}",
        "kinds": ("matmul", "add"),
        "flops": 2**40,
        "bytes": 12,
        "shapes": (((16, 16), "float32"), ((), "int64")),
        "module": '{"module": "text é"}' * 50,
    }
    return OperatorRecord(**(fields | changes))


def program(number: int = 0, origin: str = "evolutionary") -> ProgramRecord:
    return ProgramRecord(sketch="5ce7c4", decisions=f"[[{number},4,1,2]]", origin=origin)


def trial(hardware: str, seconds: float | None = 1.0, number: int = 0, **changes: Any) -> TrialRecord:
    """A trial of program `number`; without `seconds` it failed."""
    fields: dict[str, Any] = {"operator": "aa00", "hardware": hardware, "program": program(number)}
    fields |= {"samples": (seconds,)} if seconds is not None else {"failure": "crash", "message": "SIGSEGV"}
    return TrialRecord(**(fields | changes))


def filled(location: StoreLocation | str, *operators: str) -> tuple[Store, str]:
    """A store that knows a model, some operators and one piece of hardware, whose digest comes with it."""
    store = Store.open(location)
    store.add_model("f00d", "tiny", "tiny.onnx")
    store.add_operators(operator(key) for key in operators or ("aa00", "bb11"))
    store.add_sketch("5ce7c4", "sketch text")
    return store, store.add_hardware(HARDWARE)
