# The demo app in an image that holds nothing but its binary, that of the command
# schedlock, and a folder for the database. It runs as user 65532, which needs no entry in any passwd file,
# and needs no zone files and no certificates: the zones are in the binary, and
# the app calls nobody.
#
# There are two ways to the same image:
#
#   build      compiles the binaries in a container (the default)
#   prebuilt   takes those that lie in bin, for places that cannot pull the
#              compiler's image: CGO_ENABLED=0 go build -o bin/ ./cmd/...
#
# The stages stand in this order because the engine's older builder, unlike
# BuildKit, runs all stages that stand before the target, needed or not.

# A scratch image has no mkdir. The root of an empty image is copied to /data
# instead, which gives that folder an owner: a new volume on it inherits both.
FROM scratch AS empty
WORKDIR /

FROM empty AS base
COPY --from=empty --chown=65532:65532 / /data
VOLUME /data
USER 65532:65532
# 0.0.0.0, since ports are published on the container's own address. There is
# no /tmp: what SQLite sorts outside memory goes to the volume.
ENV DEMOAPP_ADDR=0.0.0.0:8080 \
    DEMOAPP_DATABASE_URL=file:/data/demoapp.db \
    SQLITE_TMPDIR=/data
WORKDIR /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/demoapp", "healthcheck"]
ENTRYPOINT ["/demoapp"]

# The pattern lets this stage pass where the older builder runs it on the way
# to "build" and there is no binary; LICENSE is there because a COPY must find
# something.
FROM base AS prebuilt
COPY LICENSE bi[n]/* /

FROM golang:1.26-alpine AS compile
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/ ./cmd/...

FROM base AS build
COPY LICENSE /
COPY --from=compile /out/* /
