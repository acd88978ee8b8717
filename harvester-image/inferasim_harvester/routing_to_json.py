"""Turns an engine's dump of expert routing into JSON. A script for the engine's own Python, which has torch.

    python3 routing_to_json.py DUMP.pt OUT.json

The form is the one of docs/formats/expert-routing.md. `weights_only` keeps a dump from running code.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

KEPT = ("forward_pass_id", "rank", "forward_mode", "topk_ids_of_layer")


def plain(value: Any) -> Any:
    """Tensors as lists, everything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def main(source: str, target: str) -> None:
    """Reads the dump, writes the JSON."""
    dump = torch.load(source, weights_only=True, map_location="cpu")
    document = {
        "source": Path(source).name,
        "records": [{key: plain(record[key]) for key in KEPT} for record in dump["records"]],
        "last_physical_to_logical_map": plain(dump["last_physical_to_logical_map"]),
    }
    Path(target).write_text(json.dumps(document))


if __name__ == "__main__":
    main(*sys.argv[1:3])
