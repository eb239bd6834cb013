package check

import (
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCertificateValidity(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for _, c := range []struct {
		from, to time.Duration
		want     string // expected error; empty: none
	}{
		{-10 * day, 90 * day, ""},
		{-90 * day, 10 * day, ""},
		{-98 * day, 2 * day, "not renewed and about to expire: valid until 2026-01-03T00:00:00Z"},
		{-100 * day, -day, "expired: it was valid until 2025-12-31T00:00:00Z"},
		{day, 100 * day, "not yet valid: from 2026-01-02T00:00:00Z"},
	} {
		detail, err := (&Server{Now: now}).validity(
			&x509.Certificate{NotBefore: now.Add(c.from), NotAfter: now.Add(c.to)},
			nil,
		)
		switch {
		case c.want == "" && (err != nil || !strings.HasPrefix(detail, "valid until 2026-")):
			t.Errorf("%+v: %s, %v", c, detail, err)
		case c.want != "" && (err == nil || err.Error() != c.want):
			t.Errorf("%+v: %s, %v", c, detail, err)
		}
	}
	if _, err := (&Server{Now: now}).validity(nil, errors.New("no certificate")); err == nil {
		t.Error("a missing certificate is valid")
	}
}
