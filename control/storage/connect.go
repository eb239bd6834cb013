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

// ClientConfig describes an etcd cluster and how to connect to it.
type ClientConfig struct {
	Endpoints []string
	// CAFile, CertFile and KeyFile configure TLS. All may be empty.
	CAFile, CertFile, KeyFile string
}

const (
	connectTimeout = 20 * time.Second
	// keepAliveInterval and keepAliveTimeout detect a dead connection.
	keepAliveInterval = 30 * time.Second
	keepAliveTimeout  = 10 * time.Second
	// maxMessageSize is the maximum size of an object or list page, in bytes.
	maxMessageSize = 1 << 30
)

// Connect creates the etcd client that all stores share, and waits for the first response.
func Connect(ctx context.Context, s ClientConfig) (*kubernetes.Client, error) {
	c := clientv3.Config{
		Endpoints: s.Endpoints, DialTimeout: connectTimeout,
		DialKeepAliveTime: keepAliveInterval, DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize: maxMessageSize, Logger: zap.NewNop(),
	}
	if s.CAFile != "" || s.CertFile != "" || s.KeyFile != "" {
		tls, err := transport.TLSInfo{CertFile: s.CertFile, KeyFile: s.KeyFile, TrustedCAFile: s.CAFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd TLS configuration: %w", err)
		}
		c.TLS = tls
	}
	client, err := kubernetes.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w", s.Endpoints, err)
	}
	pingCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := client.Client.Get(pingCtx, "/health"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("etcd at %v is not responding: %w", s.Endpoints, err)
	}
	return client, nil
}
