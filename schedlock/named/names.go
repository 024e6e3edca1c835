package named

import (
	"errors"
	"fmt"
	"slices"

	"example.com/schedlock/internal/names"
)

// checkName returns an error unless name is a name; see [Locks].
func checkName(name string) error {
	if name == "" {
		return errors.New("the name of a lock is empty")
	}
	return names.Check("the name of a lock", name)
}

// kinds are those that there are.
var kinds = []Kind{KindLock, KindTask, KindTimeout, KindElection}

// checkKey returns an error unless the key can be that of a row: one without a kind
// would be free for ever.
func checkKey(k Key) error {
	if err := checkName(k.Name); err != nil {
		return err
	}
	if !slices.Contains(kinds, k.Kind) {
		return fmt.Errorf("the kind %.40q of the lock %q is none of %q", k.Kind, k.Name, kinds)
	}
	return nil
}
