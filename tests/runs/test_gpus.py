"""Which GPU each slot sees, with stand-ins for the machine's tools: no GPU is needed here."""

import threading

import pytest
from scripted_trials import finish, scripted_sweep
from sweeps import python

from sweeper.errors import UsageError
from sweeper.run.worker import gpus
from sweeper.run.worker.gpus import SlotDevice, find_gpus, share_gpus

NVIDIA = "0, GPU-aa, 40960\n1, GPU-bb, 40960\n2, GPU-cc, [N/A]\n"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Set what the machine's tools print, and the environment; no driver is there."""

    def set_up(environment, nvidia=""):
        monkeypatch.setattr(gpus, "_listed", lambda: nvidia)
        monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_up


VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("selection", "environment", "expected"),
    [
        ("all", {}, [("0", 40960), ("1", 40960), ("2", None)]),
        ("1,0", {}, [("1", 40960), ("0", 40960)]),
        ("all", {VISIBLE: "1"}, [("1", 40960)]),
        ("all", {VISIBLE: "GPU-bb"}, [("GPU-bb", 40960)]),
    ],
)
def test_gpus_are_found_as_the_environment_and_nvidia_smi_name_them(
    selection, environment, expected, machine
):
    machine(environment, NVIDIA)
    assert list(find_gpus(selection).items()) == expected


@pytest.mark.parametrize(
    ("selection", "environment", "nvidia", "says"),
    [
        ("all", {}, "", "no GPU was found here"),
        ("all", {VISIBLE: "-1"}, NVIDIA, "no GPU was found here (it is '-1')"),
        ("0", {}, "", "--gpus 0: no GPU was found here (nvidia-smi names none"),
        ("0,7", {}, NVIDIA, "there is no GPU 7 here; there are 0, 1, 2"),
        ("0,0", {}, NVIDIA, "each once"),
        (",", {}, "", "give ids with commas between"),
        ("all", {}, "garbage", "no GPU was found here"),
    ],
)
def test_gpus_that_are_not_there_are_refused(selection, environment, nvidia, says, machine):
    machine(environment, nvidia)
    with pytest.raises(UsageError) as caught:
        find_gpus(selection)
    assert says in str(caught.value)


@pytest.mark.parametrize("file", ["nvidia0", "kfd", "dxg", None])
def test_an_id_is_taken_on_trust_where_a_driver_or_the_environment_has_it(tmp_path, file, machine):
    machine({} if file else {"CUDA_VISIBLE_DEVICES": "MIG-1"})
    if file:
        (tmp_path / file).touch()
    assert find_gpus("MIG-1") == {"MIG-1": None}


def test_trials_share_a_gpus_memory_and_neighbours_have_different_gpus():
    two = {"0": 40000, "1": 20000}
    assert share_gpus(two, 1) == (SlotDevice("0"), SlotDevice("1"))
    halves = (SlotDevice("0", 18000), SlotDevice("1", 9000))
    assert share_gpus(two, 2) == halves * 2
    assert share_gpus({"0": 40000}, 1, memory=512) == (SlotDevice("0", 512),)
    with pytest.raises(UsageError, match="--gpu-memory MB"):
        share_gpus({"0": None}, 2)
    assert share_gpus({"0": None}, 2, memory=512) == (SlotDevice("0", 512),) * 2


def test_no_two_trials_are_on_one_device_at_a_time(tmp_path):
    both = threading.Barrier(2, timeout=10)
    using = []

    def look(trial):
        both.wait()
        using.append((trial.assignment.devices, trial.assignment.memory_limit))
        both.wait()
        return finish(trial)

    devices = iter((SlotDevice("0", 100), SlotDevice("3", 200)))
    with scripted_sweep(tmp_path, {None: look}, trials=6, context={"devices": devices}) as sweep:
        sweep.serve(2)
        assert [set(using[n : n + 2]) for n in (0, 2, 4)] == [{("0", 100), ("3", 200)}] * 3
        rows = sweep.repository.database.read(
            lambda c: list(c.exec_driver_sql("SELECT devices FROM sweeper_attempts").scalars())
        )
        assert sorted(rows) == ["0", "0", "0", "3", "3", "3"]


LIMITING = """
import os, sys, types

calls = []
sys.modules["tensorflow"] = types.SimpleNamespace(config=types.SimpleNamespace(
    list_physical_devices=lambda kind: [kind + ":0"],
    LogicalDeviceConfiguration=lambda memory_limit: memory_limit,
    set_logical_device_configuration=lambda *call: calls.append(call),
))
from sweeper.support.tensorflow_start import limit_memory, show_devices

show_devices({devices!r})
limit_memory({limit!r})
print([os.environ.get(n) for n in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")], calls)
"""


@pytest.mark.parametrize(
    ("devices", "limit", "output"),
    [("1", 512, "['1', '1'] [('GPU:0', [512])]"), (None, None, "[None, None] []")],
)
def test_a_trial_process_hides_the_other_gpus_and_limits_its_own_before_it_starts(
    devices, limit, output, machine, tmp_path
):
    machine({})
    ended = python("-c", LIMITING.format(devices=devices, limit=limit), cwd=tmp_path)
    assert ended.out.strip() == output, ended.err
