// Ollama's own client. MESSAGES ADDRESS: prints one line of JSON.
import { Ollama } from 'ollama';

const [said, address] = process.argv.slice(2);
const client = new Ollama({ host: address });
const model = (await client.list()).models[0].model;
const greedy = { model, messages: JSON.parse(said), options: { temperature: 0, repeat_penalty: 1, num_predict: 12 } };

const whole = await client.chat(greedy);

let streamed = '';
let end;
for await (const part of await client.chat({ ...greedy, stream: true })) {
  streamed += part.message.content;
  end = part.done_reason;
}

const formatted = await client.chat({
  ...greedy,
  format: {
    type: 'object',
    properties: { verdict: { enum: ['yes'] }, count: { enum: ['three'] } },
    required: ['verdict', 'count'],
    additionalProperties: false,
  },
  options: { temperature: 0, num_predict: 100 },
});

const embedded = await client.embed({ model, input: ['hello', 'goodbye'] });
const refused = await client.chat({ ...greedy, options: { temperature: 'hot' } }).catch((error) => error);

console.log(
  JSON.stringify({
    whole: whole.message.content,
    streamed,
    end,
    formatted: JSON.parse(formatted.message.content),
    dimensions: embedded.embeddings.map((embedding) => embedding.length),
    refused: [refused.constructor.name, refused.status_code],
  }),
);
