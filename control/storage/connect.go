package storage

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
)

// ClientConfig is an etcd cluster and how to reach it.
type ClientConfig struct {
	Endpoints []string
	// CAFile, CertFile and KeyFile are for TLS; all may be empty.
	CAFile, CertFile, KeyFile string
}

const (
	connectTimeout = 20 * time.Second
	// keepAliveInterval and answerWithin find a server that has gone without a word.
	keepAliveInterval = 30 * time.Second
	keepAliveTimeout  = 10 * time.Second
	// maxMessageSize is the biggest object or list page on the wire, in bytes.
	maxMessageSize = 1 << 30
)

// Connect makes the client that all stores of the process share, and waits for
// the first answer.
func Connect(ctx context.Context, s ClientConfig) (*kubernetes.Client, error) {
	c := clientv3.Config{
		Endpoints: s.Endpoints, DialTimeout: connectTimeout,
		DialKeepAliveTime: keepAliveInterval, DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize: maxMessageSize, Logger: zap.NewNop(),
	}
	if s.CAFile != "" || s.CertFile != "" || s.KeyFile != "" {
		tls, err := transport.TLSInfo{CertFile: s.CertFile, KeyFile: s.KeyFile, TrustedCAFile: s.CAFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("TLS to etcd: %w", err)
		}
		c.TLS = tls
	}
	client, err := kubernetes.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w", s.Endpoints, err)
	}
	ask, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := client.Client.Get(ask, "/health"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("etcd at %v does not answer: %w", s.Endpoints, err)
	}
	return client, nil
}
