#!/bin/sh
# Makes the files of the cluster in compose.yaml, once: CONF/NODE and DATA/NODE for each node. Runs in the image:
#   echo "$PASSWORD" | podman compose run --rm -T found
# Standard input has the password of the user `admin`.
set -eu
CONF=${CONF:-/etc/fairlead}
DATA=${DATA:-/data}
if [ -e "$CONF/done" ]; then
    echo "this cluster was founded already" >&2
    exit 0
fi
new="$CONF/new"
fairlead cluster init "$new" --name compose --carrier tcp --group a=mm1,mm2 --group b=mm2,mm1 \
    --voter cm1 --voter cm2 --voter mm1 --voter mm2 --voter w1
fairlead user add admin --admin _ADMIN --consume '>' --consume _DMQ --consume _LOG --file "$new/users.toml" --password-stdin
fairlead cluster set users "@$new/users.toml" --file "$new/settings.toml"
fairlead node secret "$new/secret"
for node in cm1 cm2 mm1 mm2 w1; do
    case $node in
    cm*) kind=cm; set -- --listen 0.0.0.0:7400 ;;
    mm*) kind=mm; set -- ;;
    *) kind=witness; set -- ;;
    esac
    for other in cm1 cm2 mm1 mm2 w1; do
        if [ "$other" != "$node" ]; then set -- "$@" --seed "main=$other:7404"; fi
    done
    mkdir -p "$CONF/$node"
    cp "$new/cluster.toml" "$new/settings.toml" "$new/secret" "$CONF/$node/"
    fairlead node init "$CONF/$node" --name "$node" --kind "$kind" --data "$DATA/$node" --founding \
        --bus "main=$node:7404" --secret "$CONF/$node/secret" "$@"
done
rm -r "$new"
touch "$CONF/done"
