#!/bin/bash
# Starts one ZooKeeper, configured by the variables that the public zookeeper image reads.
set -euo pipefail

cat > /conf/zoo.cfg <<CONFIGURATION
dataDir=/data
dataLogDir=/datalog
clientPort=2181
tickTime=${ZOO_TICK_TIME:-2000}
maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-60}
autopurge.snapRetainCount=${ZOO_AUTOPURGE_SNAPRETAINCOUNT:-3}
autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-0}
4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr}
# The admin server needs Jetty, which is not here.
admin.enableServer=false
CONFIGURATION

exec java "-Xmx${ZK_SERVER_HEAP:-1000}m" -XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile=log4j2.properties \
    -cp '/opt/zookeeper/libs/*' org.apache.zookeeper.server.ZooKeeperServerMain /conf/zoo.cfg
