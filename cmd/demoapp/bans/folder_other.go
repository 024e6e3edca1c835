//go:build !unix

package bans

import "os"

const openFlags = os.O_RDONLY
