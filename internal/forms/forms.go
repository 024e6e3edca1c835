// Package forms reads what the clients of an HTTP server send, and refuses what net/http would
// drop without a word: the order, or the answer, would be another one than was meant.
package forms

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
)

// Parse makes r.Form of the query and of a body that is a form; most is how much of it
// may be in memory.
func Parse(r *http.Request, most int64) error {
	if err := r.ParseForm(); err != nil {
		return fmt.Errorf("form: %w", err)
	}
	err := r.ParseMultipartForm(most)
	if err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return fmt.Errorf("form: %w", err)
	}
	header := r.Header.Get("Content-Type")
	kind, _, _ := mime.ParseMediaType(header)
	if err != nil && r.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return fmt.Errorf("content type %.40q: send by and reason as the fields of a form", header)
	}
	return nil
}

// Query returns the query.
func Query(r *http.Request) (url.Values, error) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("query %.200q: %w: write it as in ?NAME=VALUE, "+
			"with & between parameters", r.URL.RawQuery, err)
	}
	return v, nil
}
