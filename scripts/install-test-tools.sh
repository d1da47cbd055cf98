#!/usr/bin/env bash
# What the tests go through or look with, from Debian's packages; as root: proxies, strace, a browser. None of it is started.
set -euo pipefail
wanted=()
command -v nginx >/dev/null || wanted+=(nginx-light)
command -v tinyproxy >/dev/null || wanted+=(tinyproxy-bin)
command -v squid >/dev/null || wanted+=(squid)
command -v strace >/dev/null || wanted+=(strace)
command -v chromium >/dev/null || wanted+=(chromium fonts-dejavu-core)
[ ${#wanted[@]} = 0 ] && exit 0
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then  # installing must not start services
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}"
