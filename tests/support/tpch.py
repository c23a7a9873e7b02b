"""TPC-H's lineitem by month of shipping, views of it by the day, and the three queries that are asked of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb

TIME_COLUMN = "l_shipdate"
VIEWS = {
    "daily": "SELECT l_shipdate, l_returnflag, l_linestatus, count(*) AS n, sum(l_quantity) AS quantity, "
    "sum(l_extendedprice) AS price, sum(l_extendedprice * (1 - l_discount)) AS discounted, "
    "sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS charge, avg(l_quantity) AS mean_quantity, "
    "avg(l_extendedprice) AS mean_price, avg(l_discount) AS mean_discount "
    "FROM {t} GROUP BY 1, 2, 3",
    "forecast": "SELECT l_shipdate, sum(l_extendedprice * l_discount) AS revenue FROM {t} "
    "WHERE l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24 GROUP BY 1",
}
Q1 = (
    "SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price, "
    "sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, "
    "sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty, "
    "avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order "
    "FROM {t} WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus "
    "ORDER BY l_returnflag, l_linestatus"
)
Q6 = (
    "SELECT sum(l_extendedprice * l_discount) AS revenue FROM {t} WHERE l_shipdate >= DATE '1994-01-01' "
    "AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24"
)
MONTHLY = (
    "SELECT date_trunc('MONTH', l_shipdate) AS month, sum(l_extendedprice * (1 - l_discount)) AS revenue "
    "FROM {t} GROUP BY 1 ORDER BY 1"
)
QUERIES = {"Q1": Q1, "Q6": Q6, "monthly revenue": MONTHLY}


def generate(location: Path, scratch: Path, *, scale: str) -> int:
    """Write lineitem, one file for each month; returns how many rows it has."""
    command = [str(Path(sys.executable).with_name("tpchgen-cli")), "parquet", "-s", scale, "--tables=lineitem"]
    subprocess.run([*command, f"--output-dir={scratch}"], check=True, capture_output=True)
    location.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as connection:
        source = f"read_parquet('{scratch}/lineitem.parquet')"
        counted = connection.execute(f"SELECT strftime(l_shipdate, '%Y-%m') AS m, count(*) FROM {source} GROUP BY 1")
        months = dict(counted.fetchall())
        for month in sorted(months):
            rows = f"SELECT * FROM {source} WHERE strftime(l_shipdate, '%Y-%m') = '{month}'"
            connection.execute(f"COPY ({rows}) TO '{location}/{month}.parquet' (FORMAT parquet)")
    shutil.rmtree(scratch)
    return sum(months.values())
