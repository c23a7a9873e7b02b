# zookeeper:3.9 from the jars inside pyspark; the same paths and variables as the public image.
FROM floodmark/java
COPY libs /opt/zookeeper/libs
COPY log4j2.properties /opt/zookeeper/
COPY zookeeper-entrypoint.sh /usr/local/bin/entrypoint
RUN install --directory --owner=server --group=server /conf /data /datalog
USER server
WORKDIR /opt/zookeeper
EXPOSE 2181
ENTRYPOINT ["entrypoint"]
