#!/usr/bin/env bash
# Programs that nobody here wrote, disturbed in known ways while `gpuwhy watch` looks on: real.sh GPUWHY.
#
# Each situation TRIALS (10) times, and each program is left alone for CALM_MINUTES (60), which counts false alarms: a
# whole run takes most of a day. It can be had in parts, of MINUTES each: what was done is kept in
# bench/results/real.json and not done again, unless judgement was changed since (SINCE in bench/real/run.py); until a program is
# measured again, what the judge before said of it counts.
# ONLY=word[,word] runs the situations whose names or programs hold a word. Needs root; installs PostgreSQL, Redis,
# MariaDB, nginx, node, memcached, Java, Go, Ruby, Flask, gRPC, PyTorch, LAMMPS, HAProxy, PHP, ffmpeg, scikit-learn, Apache,
# Varnish, Erlang, etcd, Unbound, GROMACS, Squid, BIND and Prometheus where they are missing. vLLM takes part if `make llm-env` was run,
# and XGBoost, JAX, Ray, FastAPI, llama.cpp, Keras, LightGBM, ONNX Runtime and DuckDB if `make programs-env` was.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=()
command -v /usr/lib/postgresql/*/bin/postgres >/dev/null || wanted+=(postgresql postgresql-contrib)
/usr/bin/python3 -c 'import torch' 2>/dev/null || wanted+=(python3-torch)
# The linear algebra that it takes otherwise is a reference, ten times as slow.
ls /usr/lib/*/openblas-pthread/libblas.so.3 >/dev/null 2>&1 || wanted+=(libopenblas0-pthread)
command -v redis-server >/dev/null || wanted+=(redis-server redis-tools)
command -v mariadbd >/dev/null || wanted+=(mariadb-server)
command -v nginx >/dev/null || wanted+=(nginx)
command -v node >/dev/null || wanted+=(nodejs)
command -v memcached >/dev/null || wanted+=(memcached)
command -v javac >/dev/null || wanted+=(default-jdk-headless)
command -v go >/dev/null || wanted+=(golang-go)
command -v puma >/dev/null || wanted+=(puma)
command -v gunicorn >/dev/null || wanted+=(gunicorn python3-flask)
command -v lmp >/dev/null || wanted+=(lammps openmpi-bin)
command -v haproxy >/dev/null || wanted+=(haproxy)
ls /usr/sbin/php-fpm* >/dev/null 2>&1 || wanted+=(php-fpm)
command -v ffmpeg >/dev/null || wanted+=(ffmpeg)
command -v apache2 >/dev/null || wanted+=(apache2-bin)
command -v varnishd >/dev/null || wanted+=(varnish)
command -v erl >/dev/null || wanted+=(erlang-base erlang-inets)
command -v etcd >/dev/null || wanted+=(etcd-server)
command -v unbound >/dev/null || wanted+=(unbound)
command -v gmx >/dev/null || wanted+=(gromacs)
command -v squid >/dev/null || wanted+=(squid)
command -v named >/dev/null || wanted+=(bind9)
command -v prometheus >/dev/null || wanted+=(prometheus)
/usr/bin/python3 -c "import sklearn" 2>/dev/null || wanted+=(python3-sklearn)
/usr/bin/python3 -c 'import grpc' 2>/dev/null || wanted+=(python3-grpcio)
/usr/bin/python3 -c 'import pymysql' 2>/dev/null || wanted+=(python3-pymysql)
/usr/bin/python3 -c 'import fusepy' 2>/dev/null || wanted+=(python3-fusepy fuse3)
if ((${#wanted[@]})); then
    apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
fi
exec python3 bench/real/run.py "$1"
