//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// serveKubernetes answers what a leader election asks of the Kubernetes API: it
// gets, creates and updates a Lease, with conflicts of the resource version. It
// keeps them in etcd, as the API does. Without authentication, admission and TLS
// it takes less time than that.
func serveKubernetes(args []string) {
	client, err := etcdClient(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	const root = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	api := leases{client}
	http.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := client.Get(ctx, "ready"); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("GET "+root+"/{name}", api.get)
	http.HandleFunc("POST "+root, api.put)
	http.HandleFunc("PUT "+root+"/{name}", api.put)
	go func() {
		fmt.Fprintln(os.Stderr, http.ListenAndServe(address(args[1]), nil))
		os.Exit(1)
	}()
	untilParentEnds()
}

type leases struct{ client *clientv3.Client }

func key(name string) string { return "/registry/leases/default/" + name }

func (l leases) get(w http.ResponseWriter, r *http.Request) {
	got, err := l.client.Get(r.Context(), key(r.PathValue("name")))
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case len(got.Kvs) == 0:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		var lease coordination.Lease
		if json.Unmarshal(got.Kvs[0].Value, &lease) != nil {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return
		}
		reply(w, &lease, got.Kvs[0].ModRevision)
	}
}

// put creates a lease if there is none, and updates the version that the client
// has seen.
func (l leases) put(w http.ResponseWriter, r *http.Request) {
	var lease coordination.Lease
	body, err := io.ReadAll(r.Body)
	if err == nil { // client-go sends protobuf
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &lease)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	seen, reason := int64(0), metav1.StatusReasonAlreadyExists
	if r.Method == http.MethodPut {
		seen, _ = strconv.ParseInt(lease.ResourceVersion, 10, 64) // 0 is no version
		reason = metav1.StatusReasonConflict
	}
	text, err := json.Marshal(lease)
	if err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	k := key(lease.Name)
	done, err := l.client.Txn(r.Context()).
		If(clientv3.Compare(clientv3.ModRevision(k), "=", seen)).
		Then(clientv3.OpPut(k, string(text))).Commit()
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case !done.Succeeded:
		refuse(w, http.StatusConflict, reason)
	default:
		reply(w, &lease, done.Header.Revision)
	}
}

func reply(w http.ResponseWriter, lease *coordination.Lease, version int64) {
	lease.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	lease.ResourceVersion = strconv.FormatInt(version, 10)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(lease) // a client that has gone asks again
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason,
	})
}
