"""Messages of a guard's events, one sentence each, for the log and the records."""

from trec_qcomm.lab.records import GuardRecord

_EVENTS = {
    "trip": "trips", "raise": "raised", "lower": "lowered", "warn": "no change", "error": "error",
    "calm": "calm again",
}  # fmt: skip
_REASONS = {
    "loss": "codecs add to the loss of the probe batches",
    "calm": "what codecs add to the loss of the probe batches was low for long",
    "nan": "values are NaN or infinite before they are coded",
    "unencodable": "finite values are NaN or infinite after the codec",
    "pointless": "coded rows take more bytes than float32",
    "drift": "the codec does much worse than it did",
    "no_table_left": "the loss is above the limit, and no table has a finer codec",
    "undecidable": "the loss of a probe batch is NaN or infinite without codecs",
    "resumed": "the checkpoint has no such rung for it; it begins as the configuration says",
}


def is_move(event: GuardRecord) -> bool:
    """Return whether a table has another rung after an event."""
    return event.rung_before != event.rung_after


def message_of(event: GuardRecord, limit_ne: float) -> str:
    """Return one sentence on an event. Args: limit_ne: limit of the loss, in percent."""
    subject = f"guard: {event.table} {event.direction}" if event.table else "guard"
    moved = f"{event.codec_before} -> {event.codec_after}"
    why = _REASONS[event.reason]
    if event.reason in ("loss", "calm") and event.change is not None:
        interval = "" if event.low is None else f" [{event.low:+.3g}, {event.high:+.3g}]"
        why += f": {event.change:+.3g} %{interval}, limit {limit_ne:g} %"
    return f"{subject}: {moved if is_move(event) else _EVENTS[event.event]}: {why}"
