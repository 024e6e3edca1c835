// Package blocklists holds a few sample block lists, so that the demo app shows
// something without a folder of its own. They name documentation networks only
// (RFC 5737, RFC 3849).
package blocklists

import "embed"

// FS holds the sample lists.
//
//go:embed *.txt *.ipset
var FS embed.FS
