package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"

	"berth/control/pki"
)

// encryption encrypts stored objects as the EncryptionConfiguration selects.
type encryption struct {
	transformers value.ResourceTransformers
	checks       []healthz.HealthChecker // of KMS providers

	reload   *controller.DynamicEncryptionConfigContent // nil: the file is read at the start only
	lifetime context.Context                            //nolint:containedctx // of the connections to KMS providers
	end      context.CancelFunc
	tasks    sync.WaitGroup
}

// openEncryption loads the EncryptionConfiguration. At the first start it creates one with a new key. The caller must
// call close after the last request.
func openEncryption(c *Config) (*encryption, error) {
	path := c.EncryptionConfig
	if path == "" {
		path = c.path("pki", "encryption.yaml")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := pki.WriteEncryptionConfig(path); err != nil {
				return nil, err
			}
		}
	}
	e := &encryption{}
	e.lifetime, e.end = context.WithCancel(context.Background())
	first, end := context.WithCancel(e.lifetime)
	config, err := encryptionconfig.LoadEncryptionConfig(first, path, c.EncryptionConfigReload, serverID)
	if err != nil {
		end()
		e.end()
		return nil, fmt.Errorf("encryption configuration %s: %w", path, err)
	}
	encryptionmetrics.RecordEncryptionConfigLastConfigInfo(serverID, config.EncryptionFileContentHash)
	e.transformers, e.checks = encryptionconfig.StaticTransformers(config.Transformers), config.HealthChecks
	if !c.EncryptionConfigReload {
		context.AfterFunc(e.lifetime, end)
		return e, nil
	}
	dynamic := encryptionconfig.NewDynamicTransformers(config.Transformers, config.HealthChecks[0], end,
		config.KMSCloseGracePeriod)
	e.transformers, e.checks = dynamic, []healthz.HealthChecker{dynamic}
	e.reload = controller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
		path, dynamic, config.EncryptionFileContentHash, serverID)
	return e, nil
}

// addHealthChecks adds the checks of KMS providers. A failure does not affect /livez, because a restart of the server
// would not help.
func (e *encryption) addHealthChecks(c *genericapiserver.Config) {
	c.HealthzChecks = append(c.HealthzChecks, e.checks...)
	c.ReadyzChecks = append(c.ReadyzChecks, e.checks...)
}

// watch applies changes of the file until close.
func (e *encryption) watch() {
	if e.reload != nil {
		e.tasks.Go(func() { e.reload.Run(e.lifetime) })
	}
}

// close ends the connections to KMS providers.
func (e *encryption) close() {
	e.end()
	e.tasks.Wait()
}
