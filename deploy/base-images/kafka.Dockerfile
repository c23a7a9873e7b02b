# apache/kafka from the jars that `floodmark fetch` pins; the same paths and variables as the public image.
FROM floodmark/java
COPY libs /opt/kafka/libs
COPY log4j2.properties /opt/kafka/
COPY kafka-entrypoint.sh /usr/local/bin/entrypoint
RUN install --directory --owner=server --group=server /opt/kafka/config /var/lib/kafka/data
USER server
WORKDIR /opt/kafka
EXPOSE 9092
ENTRYPOINT ["entrypoint"]
