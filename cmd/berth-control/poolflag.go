package main

import (
	"strings"

	"berth/control/loadbalancer"
)

// poolFlag is a flag value: a comma-separated list of CIDRs and ranges of addresses.
type poolFlag struct{ to *loadbalancer.Pool }

// String returns the current value.
func (p *poolFlag) String() string {
	if p.to == nil {
		return ""
	}
	texts := make([]string, 0, len(*p.to))
	for _, r := range *p.to {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ",")
}

// Set replaces the value.
func (p *poolFlag) Set(text string) error {
	if text == "" {
		*p.to = nil
		return nil
	}
	pool, err := loadbalancer.ParsePool(strings.Split(text, ","))
	if err == nil {
		*p.to = pool
	}
	return err
}

// Type returns the placeholder for the help text.
func (p *poolFlag) Type() string { return "pool" }
