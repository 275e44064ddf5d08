"""An environment that is sent with the job, as docs/deploy.md says: no machine has the package."""

import subprocess
import sys

import pyspark
import pytest
from clusters import ManyMachines
from environments import packed_environment
from patience import PATIENCE

HOME = pyspark.__path__[0]
PYTHON = "./environment/bin/python"
PACKAGES = f"environment/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.mark.once
@pytest.mark.long  # packs 300 MB, and unpacks them three times
@pytest.mark.timeout(1800)
def test_driver_planner_and_tasks_run_in_the_environment_of_the_archive(wheel, tmp_path):
    archive = packed_environment(wheel, tmp_path)
    with ManyMachines() as machines:
        driver = machines.new_driver()
        driver.path("/tmp/work/environment.tar.gz").write_bytes(archive.read_bytes())
        unpack = "mkdir environment && tar -xzf environment.tar.gz -C environment"
        subprocess.run(driver.command("sh", "-c", unpack), check=True)
        conf = {**machines.conf(), "spark.executorEnv.SPARK_HOME": HOME}
        given = [f"--conf={name}={text}" for name, text in conf.items()]
        program = f"{PACKAGES}/krishiv_spark/__main__.py"
        submit = [f"{HOME}/bin/spark-submit", "--archives", "environment.tar.gz#environment"]
        done = subprocess.run(
            driver.command(*submit, *given, program, "doctor", "--tasks=4"),
            env=driver.environment(SPARK_HOME=HOME, PYSPARK_PYTHON=PYTHON)
            | {"PYSPARK_DRIVER_PYTHON": PYTHON},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    (planner,) = (line for line in lines if " driver on " in line)
    tasks = [line for line in lines if " executor on " in line]
    assert " in /tmp/work/environment, " in planner
    assert len(tasks) == 2
    assert all("/tmp/work/app-" in line and line.endswith("/environment") for line in tasks)
