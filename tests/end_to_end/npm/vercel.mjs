// Vercel's client with a provider for each API. MESSAGES ADDRESS PROVIDER: prints one line of JSON.
import { createAnthropic } from '@ai-sdk/anthropic';
import { openai } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { createOllama } from 'ollama-ai-provider-v2';
import { z } from 'zod';

const [said, address, provider] = process.argv.slice(2);
const id = 'SmolLM2-135M-Instruct.Q4_1';
// OpenAI's by the same environment variables as OpenAI's own client; keys are in the environment too.
const compatible = createOpenAICompatible({
  name: 'umaserve',
  baseURL: `${address}/v1`,
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const anthropic = createAnthropic({ baseURL: `${address}/v1` });
const ollama = createOllama({ baseURL: `${address}/api` });
const models = {
  compatible: [compatible(id), compatible.embeddingModel(id)],
  openai: [openai.chat(id), openai.embedding(id)],
  responses: [openai(id)],
  anthropic: [anthropic(id)],
  ollama: [ollama(id), ollama.embedding(id)],
};
const [model, embedder] = models[provider];
const greedy = (tokens) => ({
  model,
  messages: JSON.parse(said),
  temperature: 0,
  maxOutputTokens: tokens,
  maxRetries: 0,
  // Ollama's provider puts the settings above where Ollama does not look for them.
  providerOptions: { ollama: { options: { temperature: 0, repeat_penalty: 1, num_predict: tokens } } },
});
const onError = ({ error }) => {
  throw error;
};

const whole = await generateText(greedy(12));

const stream = streamText({ ...greedy(12), onError });
let streamed = '';
for await (const delta of stream.textStream) {
  streamed += delta;
}

const { object } = await generateObject({
  ...greedy(100),
  schema: z.object({ verdict: z.enum(['yes']), count: z.enum(['three']) }),
});

// Two steps: the model must call, the function answers, and the model answers its result.
const called = [];
const tools = {
  get_weather: tool({
    description: 'The weather in a city.',
    inputSchema: z.object({ city: z.enum(['Paris']), unit: z.enum(['C']) }),
    execute: (input) => {
      called.push(input);
      return '18 C, rain';
    },
  }),
};
const calling = streamText({
  ...greedy(60),
  tools,
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  onError,
});
const steps = await calling.steps;

const embedded = embedder ? await embedMany({ model: embedder, values: ['hello', 'goodbye'] }) : { embeddings: [] };

console.log(
  JSON.stringify({
    whole: whole.text,
    streamed,
    usage: [await stream.finishReason, (await stream.usage).outputTokens],
    object,
    called,
    dimensions: embedded.embeddings.map((embedding) => embedding.length),
    steps: steps.map(({ toolCalls, toolResults, text }) => ({
      calls: toolCalls.length,
      results: toolResults.length,
      text,
    })),
  }),
);
