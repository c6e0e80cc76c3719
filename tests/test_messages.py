"""Every message has a unique code, and its text is in tests/golden/messages.json."""

import json
import re
from collections import Counter

from tests.golden.gather_messages import FILE, calls, code_of, template_of

CODES = {place: code for place, call in calls() if (code := code_of(call)) is not None}


def test_message_codes_are_unique_and_well_formed():
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", code) for code in CODES.values())
    count = Counter(CODES.values())
    assert {code: [place for place, its in CODES.items() if its == code] for code in count if count[code] > 1} == {}


def test_messages_file_has_every_message_code():
    """If this fails, run `make messages` and review the difference."""
    assert set(json.loads(FILE.read_text(encoding="utf-8"))) == set(CODES.values())


def test_untested_messages_match_their_source():
    """If this fails, run `make messages` and review the difference."""
    known = json.loads(FILE.read_text(encoding="utf-8"))
    templates = {code: template_of(call) for _, call in calls() if (code := code_of(call)) is not None}
    unseen = {code: entry["messages"] for code, entry in known.items() if entry["test"] is None}
    assert unseen == {code: [templates[code]] for code in unseen}
