# The image of Spark's executors: the worker's, with what Spark calls when it starts one.
# docker build -f deploy/kubernetes/executor.Dockerfile -t floodmark/executor deploy/kubernetes
ARG WORKER=floodmark/worker
FROM ${WORKER}
COPY executor-entrypoint.sh /opt/floodmark/
ENTRYPOINT ["bash", "/opt/floodmark/executor-entrypoint.sh"]
HEALTHCHECK NONE
