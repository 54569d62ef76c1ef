#!/bin/sh
# Starts a program of a job so that a worker reaches the servers through the proxy of the chaos harness.
if [ "$OPENFLEET_ROLE" = worker ]; then
    eval "OPENFLEET_SERVERS=\$OPENFLEET_CHAOS_SERVERS_$OPENFLEET_RANK"
    export OPENFLEET_SERVERS
    export PADDLE_PSERVERS_IP_PORT_LIST="$OPENFLEET_SERVERS"
fi
exec "$@"
