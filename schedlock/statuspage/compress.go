package statuspage

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// compressed answers with gzip if the client takes it: a page that is watched
// sends a part of a job again with each of its runs, and differs little from
// what went before. flush hands on what was written, end finishes the answer. The
// compressor of a stream takes about 1 MB.
func compressed(w http.ResponseWriter, r *http.Request) (to io.Writer, flush, end func() error) {
	none := func() error { return nil }
	w.Header().Add("Vary", "Accept-Encoding")
	if !takesGzip(r.Header.Get("Accept-Encoding")) {
		return w, none, none
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := newGzip(w)
	return z, z.Flush, z.Close
}

func newGzip(w io.Writer) *gzip.Writer {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil { // the level is a constant
		panic(err)
	}
	return z
}

func takesGzip(header string) bool {
	for coding := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			q, zero := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=0")
			return !zero || strings.Trim(q, ".0") != ""
		}
	}
	return false
}
