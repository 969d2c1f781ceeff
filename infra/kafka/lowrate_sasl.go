package kafka

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/sasl"
)

// saramaSASL configures the same credentials for sarama. sarama has no SCRAM implementation, so
// franz-go's is used.
func saramaSASL(c *sarama.Config, s *SASL) error {
	mechanism, err := s.mechanism()
	if err != nil || mechanism == nil {
		return err
	}
	c.Net.SASL.Enable = true
	c.Net.SASL.User, c.Net.SASL.Password = s.Username, s.Password
	c.Net.SASL.Mechanism = sarama.SASLMechanism(s.Mechanism)
	c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{mechanism: mechanism} }
	return nil
}

type scramClient struct {
	mechanism sasl.Mechanism
	session   sasl.Session
	first     []byte
	done      bool
}

// Begin starts a conversation. The mechanism already has the credentials.
func (s *scramClient) Begin(_, _, _ string) (err error) {
	s.done = false
	s.session, s.first, err = s.mechanism.Authenticate(context.Background(), "")
	return err
}

// Step answers a challenge. The empty challenge asks for the client's first message.
func (s *scramClient) Step(challenge string) (string, error) {
	if s.session == nil || s.done {
		return "", errScramEnded
	}
	if challenge == "" {
		return string(s.first), nil
	}
	done, answer, err := s.session.Challenge([]byte(challenge))
	s.done = done
	return string(answer), err
}

// Done reports whether the server has authenticated as well.
func (s *scramClient) Done() bool { return s.done }
