package nodeservices

import (
	"errors"
	"fmt"
	"log/slog"

	"berth/services/localaddress"
	"berth/services/policy"
)

// RemoveOptions configures Remove. All fields are required.
type RemoveOptions struct {
	// Stored are the values of the local store with Prefix. Put stores a value; nil deletes it.
	Stored      map[string][]byte
	Put         func(key string, value []byte)
	RemoveProxy func() error
	Addresses   localaddress.Addresses
	Log         *slog.Logger
}

// Remove removes what an agent that has ended has left on the host: the rules of Services and of network
// policies, and the addresses of the DNS server. After an error it can be repeated.
func Remove(o RemoveOptions) error {
	var errs []error
	remove := func(key, what string, f func() error) {
		if o.Stored[key] == nil {
			return
		}
		if err := f(); err != nil {
			errs = append(errs, fmt.Errorf("remove rules of %s: %w", what, err))
			return
		}
		o.Put(key, nil)
	}
	remove(keyProxy, "Services", o.RemoveProxy)
	remove(keyPolicy, "network policies", removePolicies(o.Log))
	if err := o.Addresses.Remove(); err != nil {
		errs = append(errs, fmt.Errorf("remove addresses of the DNS server: %w", err))
	}
	return errors.Join(errs...)
}

// removePolicies returns a function that removes the rules of network policies.
func removePolicies(log *slog.Logger) func() error {
	off := policy.New(policy.Options{Store: policy.NewStore(), Enabled: func() bool { return false }, Log: log})
	return off.Sync
}
