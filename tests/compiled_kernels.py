"""CPU kernels that a whole run of tests needs, compiled before its first test.

Each worker would compile what its tests meet first, and so would each rank that they spawn: the
longest kernels two to four times. Here the workers share the work, and everything loads it.
"""

from trec_qcomm.config import config_from_dict
from trec_qcomm.integration.warm_up import jobs
from trec_qcomm.jit.once import compile_once

ERROR_BOUNDED = {"codec": "error_bounded", "bound": 0.01}
PAIRS = (  # forward, backward
    (ERROR_BOUNDED | {"encoder": "rans"}, ERROR_BOUNDED),
    (ERROR_BOUNDED | {"encoder": "vector_lz"}, ERROR_BOUNDED),
    ({"codec": "rowwise", "bits": 4}, {"codec": "rowwise", "bits": 2}),
    ({"codec": "cast", "dtype": "fp16"}, "identity"),
    ("identity", "float6"),
)
CONFIG = config_from_dict(
    {
        "embedding": [
            {"tables": f"t{n}", "forward": forward, "backward": backward, "unique_bags": True}
            for n, (forward, backward) in enumerate(PAIRS)
        ],
        "ids": {"codec": "packed"},
        "debug": {"every": 1},
    }
)


def compile_all() -> None:
    """Compile what is missing, together with all other workers that call this."""
    compile_once(jobs(CONFIG))
