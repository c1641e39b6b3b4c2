"""What is planted in faults.cu, and what has to name each of it: a way to run, and its words."""

from dataclasses import dataclass, field

# Ways to run without a tool: no error is looked at; codes of calls; codes, waits and results.
PLAIN, CODES, CHECKED = "plain", "codes", "checked"
STICKY, WORKS = "afterwards: cudaError", "afterwards: the context works"


@dataclass(frozen=True)
class Fault:
    """One fault. cpu, gpu: what must name it there, words as a regular expression by way to run;
    on a GPU one of them is enough. afterwards: what the context must be on a GPU, "" for any."""

    name: str
    cpu: dict[str, str]
    gpu: dict[str, str] = field(default_factory=dict)
    afterwards: str = ""


FAULTS = (
    Fault(
        "too_many_threads",
        {CHECKED: "double_each: cudaErrorInvalidConfiguration", PLAIN: "did not run"},
        {CHECKED: "double_each: cudaErrorInvalid(Configuration|Value)"},  # by the driver's version
        WORKS,
    ),
    Fault(
        "too_much_shared_memory",
        {CHECKED: "reverse_in_shared: cudaErrorInvalidValue", PLAIN: "did not run"},
        {CHECKED: "reverse_in_shared: cudaErrorInvalidValue"},
        WORKS,
    ),
    Fault(
        "out_of_memory",
        {CHECKED: "cudaMalloc: cudaErrorMemoryAllocation"},
        {CHECKED: "cudaMalloc: cudaErrorMemoryAllocation"},
        WORKS,
    ),
    Fault(
        "illegal_address",
        {PLAIN: "illegal memory access"},
        {CHECKED: "cudaErrorIllegalAddress", "memcheck": "Invalid __global__ read"},
        STICKY,
    ),
    Fault(
        "misaligned_vector",
        {"addresses": "misaligned"},
        {CHECKED: "cudaErrorMisalignedAddress", "memcheck": "of size 16 bytes"},
        STICKY,
    ),
    Fault(
        "failed_assert",
        {PLAIN: "assertion failed", CHECKED: "cudaErrorAssert"},
        {CHECKED: "cudaErrorAssert"},
        STICKY,
    ),
    Fault(
        "stack_overflow",
        {PLAIN: "stack overflow"},
        {CHECKED: "cudaError", "memcheck": "(?i)stack"},
        STICKY,
    ),
    Fault("overflow_of_an_index", {CHECKED: "result 0"}, {CHECKED: "result 0"}, WORKS),
    Fault(
        "beyond_shared_memory",
        {PLAIN: "out of bounds", "addresses": "this thread writes"},
        {"memcheck": "Invalid __shared__ write"},
    ),
    Fault(
        "missing_barrier",
        {"trace": "race", CHECKED: "result"},
        {"racecheck": "(?i)race|hazard", CHECKED: "result"},
    ),
    Fault(
        "divergent_barrier", {PLAIN: "divergent barrier"}, {"synccheck": "(?i)barrier|divergent"}
    ),
    Fault("lost_updates", {"trace": "race"}, {CHECKED: "result 0"}, WORKS),
    Fault(
        "never_written",
        {"trace": "nothing has written", CHECKED: "result"},
        {"initcheck": "(?i)uninitialized", CHECKED: "result"},
    ),
    Fault(
        "use_after_free",
        {PLAIN: "memory that was freed"},
        {"memcheck": "Invalid __global__", CHECKED: "result|cudaError"},
    ),
    Fault("missing_event", {"late streams": "result"}, {CHECKED: "result"}, WORKS),
    # By the time limit, or before it where a busy machine gives the loop little of its time.
    Fault("no_end", {PLAIN: "did not finish|no thread makes progress"}, {CHECKED: "still running"}),
)
