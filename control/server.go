package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"berth/control/audit"
	"berth/control/pki"
	"berth/control/pods"
	"berth/control/registry"
	"berth/control/scheme"
	"berth/control/serviceips"
	"berth/control/storage"
)

// Server is a control server that listens and has its store open. Run serves requests.
type Server struct {
	*Assembly
	lock           *os.File
	listener       net.Listener
	member         *storage.Member // nil with an external etcd cluster
	storageFactory *storageFactory
	encryption     *encryption
	serving        *pki.Certificate
	auditor        *audit.Auditor
	limits         requestLimits
	customObjects  *objectOptions
	generic        *genericapiserver.GenericAPIServer
	ready          chan struct{}
}

// New opens the store and the certificates in the data directory, creates what is missing, and
// listens. The caller must call Run or Close.
func New(ctx context.Context, c Config) (_ *Server, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.warnDeprecatedControllers()
	c.warnAccess()
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Server{Assembly: &Assembly{Config: c}, ready: make(chan struct{})}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.lock, err = lockDataDir(&c); err != nil {
		return nil, err
	}
	if err := c.checkRestoreComplete(); err != nil {
		return nil, err
	}
	if s.auditor, err = audit.Open(c.Audit, c.DataDir, shutdownTimeout, c.Log); err != nil {
		return nil, err
	}
	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := s.openCertificates(); err != nil {
		return nil, err
	}
	if err := s.openStore(ctx); err != nil {
		return nil, err
	}
	if s.Client, err = kubernetes.NewForConfig(s.Loopback); err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	s.Informers = informers.NewSharedInformerFactoryWithOptions(s.Client, 0,
		informers.WithTransform(withoutManagedFields))
	core := s.Informers.Core().V1()
	s.podTransport = pods.NewPodTransport((&pods.Dialer{Pods: core.Pods().Lister(), Nodes: core.Nodes().Lister(),
		Kubelets: s.kubeletClient.verified}).DialContext)
	return s, s.build()
}

// openCertificates opens the certificate authority and issues the server's certificates.
func (s *Server) openCertificates() (err error) {
	if s.Authority, err = pki.Open(s.path("pki"), time.Now); err != nil {
		return err
	}
	s.Authority.CertificateDuration = s.OwnCertificateDuration
	s.AdvertisedEndpoint = serviceips.AdvertisedEndpoint(s.AdvertiseAddress, s.listener.Addr())
	names, addresses := certificateNames(&s.Config, s.AdvertisedEndpoint.Addr())
	if s.serving, err = s.Authority.Certificate("server", pki.ServerSubject(names, addresses)); err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	if s.NodeServingAuthority, err = s.Authority.NodeServingAuthority(); err != nil {
		return err
	}
	if s.PodAuthority, err = s.Authority.PodAuthority(); err != nil {
		return err
	}
	if s.kubeletClient, err = newKubeletClient(s.Authority, s.NodeServingAuthority); err != nil {
		return err
	}
	if s.frontProxy, err = newFrontProxy(s.Authority); err != nil {
		return err
	}
	if s.Loopback, err = s.loopback(); err != nil {
		return err
	}
	return s.writeKubeconfigs()
}

// earlyCompactionsPerInterval is the number of early compaction checks per compaction interval.
// Revisions are kept for at least one of these checks, however fast the store grows.
const earlyCompactionsPerInterval = 10

// A watch gets a bookmark every maxBookmarkInterval, and at least bookmarksPerInterval times per
// compaction interval.
const (
	maxBookmarkInterval  = time.Minute
	bookmarksPerInterval = 5
)

// openStore connects to etcd. It starts the embedded etcd if no external one is configured.
func (s *Server) openStore(ctx context.Context) (err error) {
	servers := s.Etcd
	if len(servers.Endpoints) == 0 {
		s.member, err = storage.Start(ctx, storage.Options{
			Dir: s.path("etcd"), Log: s.Log, UnsafeNoFsync: s.UnsafeNoFsync,
			DefragmentationInterval: s.EtcdDefragmentationInterval,
			QuotaBytes:              s.EtcdQuotaBytes,
			EarlyCompactionInterval: s.EtcdCompactionInterval / earlyCompactionsPerInterval,
			WatchProgressInterval:   min(s.EtcdCompactionInterval/bookmarksPerInterval, maxBookmarkInterval),
		})
		if err != nil {
			return err
		}
		servers = storage.ClientConfig{Endpoints: s.member.Endpoints()}
	}
	client, err := storage.Connect(ctx, servers)
	if err != nil {
		return err
	}
	if s.encryption, err = openEncryption(&s.Config); err != nil {
		return errors.Join(err, client.Close())
	}
	s.Scheme, s.Kinds = scheme.New(), registry.All()
	for _, kind := range s.Kinds {
		if kind.TTL > 0 {
			kind.TTL = s.EventTTL
		}
		if err := kind.AddFieldLabels(s.Scheme.Scheme); err != nil {
			return err
		}
		if kind.Default != nil {
			s.Scheme.AddTypeDefaultingFunc(kind.New(), func(obj any) {
				kind.Default(registry.MustCast[runtime.Object](obj))
			})
		}
	}
	s.storageFactory = newStorageFactory(client, s.Scheme, s.Kinds, s.encryption.transformers, s.EtcdCompactionInterval)
	s.EtcdClient = client.Client
	s.StoreOptions = registry.StoreOptions{Typer: s.Scheme, RESTOptions: s.storageFactory}
	return nil
}

// build creates the API server and installs the API groups.
func (s *Server) build() error {
	if err := s.openAccess(); err != nil {
		return err
	}
	config, err := s.genericConfig()
	if err != nil {
		return err
	}
	if s.generic, err = config.Complete(s.Informers).New("berth-control",
		genericapiserver.NewEmptyDelegate()); err != nil {
		return fmt.Errorf("create API server: %w", err)
	}
	s.generic.ShutdownTimeout = shutdownTimeout
	all, err := s.makeStores()
	if err != nil {
		return err
	}
	if err := s.install(s.generic, all); err != nil {
		return err
	}
	if err := s.installCustomResources(config); err != nil {
		return err
	}
	if err := s.installAggregation(all); err != nil {
		return err
	}
	serveOpenAPI(s.generic, config, addedDocuments{s.Assembly}, s.Config.OpenAPITTL)
	return s.addPolicy()
}

// RequestTimeout limits the duration of requests, except for watches and streams. It is the default of Kubernetes.
const RequestTimeout = time.Minute

// shutdownTimeout limits how long a shutdown waits for active requests.
const shutdownTimeout = 5 * time.Second

func (s *Server) genericConfig() (*genericapiserver.Config, error) {
	config := genericapiserver.NewConfig(s.Scheme.Codecs)
	config.EffectiveVersion = effectiveVersion(s.Version)
	config.SecureServing = &genericapiserver.SecureServingInfo{Listener: s.listener, Cert: s.serving,
		CipherSuites: cipherSuites()}
	ca, err := dynamiccertificates.NewStaticCAContent("berth-ca", s.Authority.PEM())
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	config.SecureServing.ClientCA = ca
	config.LoopbackClientConfig = s.Loopback
	config.ExternalAddress = s.listener.Addr().String()
	addOpenAPI(config)
	config.EnableProfiling = false
	config.RequestTimeout = RequestTimeout
	config.LongRunningFunc = longRunning
	config.BuildHandlerChainFunc = s.handlers
	config.RESTOptionsGetter = s.storageFactory
	config.ShutdownWatchTerminationGracePeriod = time.Second
	s.encryption.addHealthChecks(config)
	config.AddHealthChecks(healthz.NamedCheck("etcd", newCachedCheck(s.checkEtcd).check))
	config.Authentication.Authenticator = s.requestAuthenticator()
	config.Authentication.APIAudiences = s.access.audiences
	if proxy := s.access.sources.RequestHeader; proxy != nil {
		config.Authentication.RequestHeaderConfig = proxy
		if err := config.Authentication.ApplyClientCert(proxy.CAContentProvider, config.SecureServing); err != nil {
			return nil, fmt.Errorf("requestheader-client-ca-file: %w", err)
		}
	}
	config.Authorization.Authorizer, config.RuleResolver = s.access.authorizer, s.access.rbac
	config.AuditBackend, config.AuditPolicyRuleEvaluator = s.auditor.Backend, s.auditor.Evaluator
	if err := s.addRequestLimits(config); err != nil {
		return nil, err
	}
	config.AdmissionControl, err = s.admission()
	return config, err
}

// Ready returns a channel that is closed when the server is ready.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves requests until ctx is done or the store fails, shuts down in order, and returns when
// everything has stopped. It returns nil if ctx was the cause.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	wg.Go(func() { s.waitUntilReady(serving) })
	wg.Go(func() { s.renewCertificates(serving) })
	wg.Go(func() { s.access.sources.Issuers.Run(serving) })
	wg.Go(func() { s.limits.run(serving, s.ready) })
	if s.member != nil {
		wg.Go(func() {
			select {
			case <-serving.Done():
			case err := <-s.member.Failed():
				stop(s.member.DescribeFailure(err))
			}
		})
	}
	s.encryption.watch()
	waitControllers := s.runControllers(serving)
	err := s.generic.PrepareRun().RunWithContext(serving)
	stop(err)
	waitControllers()
	s.aggregation.Wait()
	wg.Wait()
	s.Informers.Shutdown()
	s.podTransport.CloseIdleConnections()
	s.access.tokenCache.Shutdown()
	if ctx.Err() == nil && err == nil {
		err = context.Cause(serving)
	}
	return err
}

// waitUntilReady closes the ready channel when /readyz succeeds.
func (s *Server) waitUntilReady(ctx context.Context) {
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := s.Client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err == nil {
			close(s.ready)
			s.Log.Info("control server ready", "server", s.Loopback.Host, "kubeconfig", s.AdminKubeconfig(),
				"after", time.Since(start).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close releases what New opened. It is for a server that does not Run.
func (s *Server) Close() {
	if s.Assembly != nil && s.access.drained != nil {
		close(s.access.drained)
		s.access.drained = nil
	}
	if s.Assembly != nil && s.access.sources.Issuers != nil {
		s.access.sources.Issuers.Close()
	}
	if s.generic != nil {
		s.generic.Destroy()
	}
	if s.storageFactory != nil {
		if err := s.storageFactory.close(); err != nil {
			s.Log.Debug("etcd client close failed", "err", err)
		}
		s.storageFactory = nil
	}
	if s.encryption != nil {
		s.encryption.close()
		s.encryption = nil
	}
	if s.member != nil {
		s.member.Close()
		s.member = nil
	}
	if s.auditor != nil {
		if err := s.auditor.Close(); err != nil {
			s.Log.Warn("audit log close failed", "err", err)
		}
		s.auditor = nil
	}
	if s.listener != nil {
		_ = s.listener.Close() // closed already if the server was running
	}
	if s.lock != nil {
		unlockDataDir(s.lock)
		s.lock = nil
	}
}

// CheckLiveness requests /livez in the same way as a client. Any response counts as live, also one
// that reports an unhealthy store. It returns an error only if there is no response before ctx is
// done.
func (s *Server) CheckLiveness(ctx context.Context) error {
	err := s.Client.Discovery().RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return nil
	}
	return err
}
